"""Write a model directory that Dynamo accepts without any download (needs the `tokenizers` package).

    make_tiny_model.py DIR

There are no weights: a worker with a synthetic engine only needs a tokenizer, a chat template and a configuration. The vocabulary has one
whole word ` w<id>` for each id from 1000 to 8191, so that a client can read the ids that a worker generated from the text that it streamed.
"""

import json
import sys
from pathlib import Path

from token_chain import FIRST_WORD, VOCABULARY, WORD
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # pyright: ignore[reportMissingImports]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = ("the quick brown fox jumps over the lazy dog", "prefill decode worker moves between nodes", "system user assistant hello world")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(path: Path) -> int:
    """Write a byte-level BPE tokenizer; return the id that ends a turn."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=FIRST_WORD, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS] * 50, trainer)
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    assert len(vocabulary) <= FIRST_WORD, "the words' ids are taken"
    # ids in between have to be there too; \u0120 is how byte-level BPE writes a blank
    vocabulary.update({f"<unused{number}>": number for number in range(len(vocabulary), FIRST_WORD)})
    vocabulary.update({WORD.format(number).replace(" ", "\u0120"): number for number in range(FIRST_WORD, VOCABULARY)})
    path.write_text(json.dumps(data, ensure_ascii=False))
    end = Tokenizer.from_file(str(path)).token_to_id("<|im_end|>")
    assert isinstance(end, int)
    return end


def main(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    end = make_tokenizer(folder / "tokenizer.json")
    files = {
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "bos_token_id": 0,
            "eos_token_id": end,
            "torch_dtype": "bfloat16",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": [end]},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[2],
            "pad_token": SPECIAL[0],
            "model_max_length": 8192,
            "chat_template": TEMPLATE,
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

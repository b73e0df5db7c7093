"""What computing context again takes, as contexts grow: each token attends to all before it, so that late ones cost more than early ones.

A token at position `p` of a context costs `1 + p/h` times what the first one does, where `h` is the length at which it costs twice as much
(a FleetProfile's `prefillDoubling`): the part of a transformer's work that grows with the context is proportional to it (J. Kaplan et al.,
"Scaling laws for neural language models", arXiv 2001.08361, section 2.1). The sum over a context of `n` tokens is `n + n^2/2h`, in tokens
at the beginning of a context; divided by `prefillRate` it is seconds. Of a worker only the sum of its contexts and their number are known;
the sum of squares is least where all are equally long, so this is the least that it can take.
"""


def in_early_tokens(tokens: float, sessions: float | None, doubling: float | None) -> float:
    """Tokens of context as so many at a context's beginning: what computing them again takes at `prefillRate`. As they are where no profile
    says how that grows (`doubling` is None), or where it isn't known how many `sessions` share them.
    """
    return tokens + tokens * mean_length(tokens, sessions) / (2 * doubling) if doubling else tokens


def mean_length(tokens: float, sessions: float | None) -> float:
    """The mean length of a context; 0 where it isn't known."""
    return max(0.0, tokens) / max(1.0, sessions) if sessions is not None else 0.0

"""What computing context again takes, as contexts grow: each token attends to all before it, so that late ones cost more than early ones.

A token at position `p` of a context costs `1 + p/h` times what the first one does, where `h` is the length at which it costs twice as much
(a FleetProfile's `prefillDoubling`): the part of a transformer's work that grows with the context is proportional to it (J. Kaplan et al.,
"Scaling laws for neural language models", arXiv 2001.08361, section 2.1). The sum over a context of `n` tokens is `n + n^2/2h`, in tokens
at the beginning of a context; divided by `prefillRate` it is seconds. Of a worker only the sum of its contexts and their number are known;
the sum of squares is least where all are equally long, so this is the least that it can take.
"""

from shunter.decide.figures import Figures
from shunter.model.sample import Known, Sample


def beginnings(figures: Figures, tokens: float, sessions: Sample | None) -> float:
    """Tokens of context as so many at a context's beginning: what computing them again takes at `prefillRate`. As they are where no profile
    says how that grows, or where it isn't known how many sessions share them.
    """
    return tokens + tokens * _mean(tokens, sessions) / (2 * figures.prefill_doubling) if figures.prefill_doubling else tokens


def dearness(figures: Figures, tokens: Sample | None, sessions: Sample | None) -> tuple[float, str]:
    """How many times as much a token at the end of a worker's contexts costs as one at their beginning, at least 1, and why in words."""
    if not figures.prefill_doubling:
        return 1.0, ""
    if not isinstance(tokens, Known) or not isinstance(sessions, Known):
        return 1.0, "; how long its contexts are isn't known, so they count as short"
    mean = _mean(tokens.value, sessions)
    return 1 + mean / figures.prefill_doubling, f"; what is lost at the end of contexts of {mean:,.0f} tokens"


def _mean(tokens: float, sessions: Sample | None) -> float:
    """The mean length of a context; 0 where it isn't known."""
    return max(0.0, tokens) / max(1.0, sessions.value) if isinstance(sessions, Known) else 0.0

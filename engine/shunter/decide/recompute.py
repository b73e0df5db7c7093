"""How dear a worker's context is, by the figures that it is planned with; `model.context` has the formula."""

from shunter.decide.figures import Figures
from shunter.model.context import in_early_tokens, mean_length
from shunter.model.sample import Known, Sample


def beginnings(figures: Figures, tokens: float, sessions: Sample | None) -> float:
    """Tokens of context as so many at a context's beginning: what computing them again takes at `prefillRate`. As they are where no profile
    says how that grows, or where it isn't known how many sessions share them.
    """
    return in_early_tokens(tokens, sessions.value if isinstance(sessions, Known) else None, figures.prefill_doubling)


def dearness(figures: Figures, tokens: Sample | None, sessions: Sample | None) -> tuple[float, str]:
    """How many times as much a token at the end of a worker's contexts costs as one at their beginning, at least 1, and why in words."""
    if not figures.prefill_doubling:
        return 1.0, ""
    if not isinstance(tokens, Known) or not isinstance(sessions, Known):
        return 1.0, "; how long its contexts are isn't known, so they count as short"
    mean = mean_length(tokens.value, sessions.value)
    return 1 + mean / figures.prefill_doubling, f"; what is lost at the end of contexts of {mean:,.0f} tokens"

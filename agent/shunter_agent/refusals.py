"""The agent's own refusals (SH6xx) that more than one of its parts gives, said once."""

from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Unknown


def rejected(code: str, what: str, remedy: str, subject: str = "") -> Rejected:
    """A refusal after which nothing was done, and asking again won't help."""
    return Rejected(Problem(code=code, what=what, remedy=remedy, subject=subject))


def retry(code: str, what: str, remedy: str, subject: str = "") -> Retry:
    """A refusal after which nothing was done, and asking again may help."""
    return Retry(Problem(code=code, what=what, remedy=remedy, subject=subject))


def unknown(code: str, what: str, remedy: str, subject: str = "") -> Unknown:
    """An effect may or may not have happened."""
    return Unknown(Problem(code=code, what=what, remedy=remedy, subject=subject))


def not_on_disk(image: str, error: Exception) -> Problem:
    """An image that is whole, and that a power cut could still take away."""
    why = error.problem.what if isinstance(error, ShunterError) else str(error)
    return Problem(
        code="SH682",
        what=f"{image} isn't on this node's disk yet, so that it doesn't outlive a power cut: {why}",
        remedy="Free disk space or mend the disk; it is tried again",
        subject=image,
    )


class Undone(Rejected):
    """It was tried, failed, and all is back where it was."""


def undone(problem: Problem) -> Undone:
    """The same problem, with the promise that the agent put everything back."""
    return Undone(problem)

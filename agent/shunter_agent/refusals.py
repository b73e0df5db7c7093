"""The agent's own refusals (SH6xx) that more than one of its parts gives, said once."""

from shunter.model.errors import Problem, Rejected, Retry, Unknown


def rejected(code: str, what: str, remedy: str, subject: str = "") -> Rejected:
    """A refusal after which nothing was done, and asking again won't help."""
    return Rejected(Problem(code=code, what=what, remedy=remedy, subject=subject))


def retry(code: str, what: str, remedy: str, subject: str = "") -> Retry:
    """A refusal after which nothing was done, and asking again may help."""
    return Retry(Problem(code=code, what=what, remedy=remedy, subject=subject))


def unknown(code: str, what: str, remedy: str, subject: str = "") -> Unknown:
    """An effect may or may not have happened."""
    return Unknown(Problem(code=code, what=what, remedy=remedy, subject=subject))


class Undone(Rejected):
    """It was tried, failed, and all is back where it was."""


def undone(problem: Problem) -> Undone:
    """The same problem, with the promise that the agent put everything back."""
    return Undone(problem)

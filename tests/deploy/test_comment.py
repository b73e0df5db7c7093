"""`shunter comment` against a forge on this machine that speaks both APIs: one comment, whatever goes wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forge_server import Answer, Forge, serve
from shunter.app.forges import github, gitlab
from shunter.app.forges.http import Api
from shunter.app.forges.port import put
from shunter.cli.comment import TOKEN
from shunter.cli.main import execute
from shunter.model.errors import Rejected, Retry, Unknown

MARK = "<!-- shunter: review of policies -->"
NEW, OLD = f"{MARK}\n### Shunter: 3 differences\n", f"{MARK}\n### Shunter: none\n"


class Time:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture(params=["github", "gitlab"])
def forge(request: pytest.FixtureRequest) -> Iterator[Forge]:
    made = Forge(request.param)
    stop = serve(made)
    yield made
    stop()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def post(forge: Forge, time: Time) -> Callable[[], str]:
    def run(body: str = NEW, token: str = "good") -> str:
        of = github if forge.kind == "github" else gitlab
        with Api(forge.url, of.headers(token), clock=lambda: time.now, sleep=time.sleep) as api:
            there = github.GitHub(api, "team/policies", 12) if forge.kind == "github" else gitlab.GitLab(api, "42", 12)
            return put(there, MARK, body)

    return run


def refused(status: int, **headers: str) -> Callable[[Forge], Answer | None]:
    return lambda _forge: (status, {"message": "no"}, {name.replace("_", "-"): value for name, value in headers.items()})


def dropped(_forge: Forge) -> Answer | None:
    return None


def test_posted_then_brought_up_to_date_then_left_alone(forge: Forge, post: Callable[..., str]) -> None:
    forge.add("a person's words", "alice")
    assert (post(OLD), post(NEW), post(NEW)) == ("posted", "updated", "unchanged")
    assert forge.bodies() == ["a person's words", NEW]
    assert [method for method, _ in forge.asked].count("POST") == 1


def test_an_old_one_is_found_on_the_last_page(forge: Forge, post: Callable[..., str]) -> None:
    for number in range(7):
        forge.add(f"word {number}", "alice")
    forge.add(OLD)
    forge.page = 3
    assert post() == "updated"
    assert forge.bodies()[-1] == NEW
    assert len(forge.comments) == 8


def test_what_somebody_else_wrote_is_not_ours_whatever_it_says(forge: Forge, post: Callable[..., str]) -> None:
    forge.add(f"{MARK}\n### Shunter: all is well\n", "mallory")
    assert post() == "posted"
    assert [c["body"] for c in forge.comments if c["user"]["login"] == "mallory"] == [f"{MARK}\n### Shunter: all is well\n"]
    assert len(forge.comments) == 2


def test_another_folder_has_a_comment_of_its_own(forge: Forge, post: Callable[..., str]) -> None:
    other = "<!-- shunter: review of policies-eu -->\n### Shunter: no difference\n"
    forge.add(other)
    assert post() == "posted"
    assert forge.bodies() == [other, NEW]


@pytest.mark.parametrize("fault", [dropped, refused(502), refused(500)], ids=["no answer", "502", "500"])
def test_what_may_have_been_posted_is_looked_for_first(
    forge: Forge, post: Callable[..., str], fault: Callable[[Forge], Answer | None]
) -> None:
    forge.faults.append(("POST", fault))
    assert post() == "posted"
    assert forge.bodies() == [NEW]
    posts = [method for method, _ in forge.asked].count("POST")
    assert posts == (1 if fault is dropped else 2)


def test_a_list_that_is_behind_does_not_make_a_second_one(forge: Forge, post: Callable[..., str]) -> None:
    forge.lag = 2
    assert post() == "posted"
    assert forge.bodies() == [NEW]
    assert [method for method, _ in forge.asked].count("POST") == 1


def test_a_second_one_that_a_list_behind_made_is_removed(forge: Forge, post: Callable[..., str]) -> None:
    """The answer to the first was lost, and the list doesn't show it yet: two are posted, and one of them stays."""

    def lost(forge: Forge) -> Answer | None:
        forge.lag = 1
        return None

    forge.faults.append(("POST", lost))
    assert post() == "posted"
    assert forge.bodies() == [NEW]


def test_two_runs_at_once_leave_one(forge: Forge, post: Callable[..., str]) -> None:
    def overtaken(forge: Forge) -> Answer | None:
        forge.add(OLD)  # another run posts between our look and our post
        return None

    forge.faults.append(("POST", overtaken))
    assert post() == "posted"
    assert forge.bodies() == [NEW]


def test_one_that_vanishes_meanwhile_is_posted_anew(forge: Forge, post: Callable[..., str]) -> None:
    forge.add(OLD)

    def vanish(forge: Forge) -> Answer | None:
        forge.comments.clear()
        return None

    forge.faults.append(("PATCH" if forge.kind == "github" else "PUT", vanish))
    # the line drops as well: it is tried again, and is gone
    assert post() == "posted"
    assert forge.bodies() == [NEW]


def test_faults_of_the_moment_are_waited_out(forge: Forge, post: Callable[..., str], time: Time) -> None:
    forge.add(OLD)
    for method in ("GET", "GET", "PATCH" if forge.kind == "github" else "PUT"):
        forge.faults.append((method, refused(503)))
    assert post() == "updated"
    assert len(time.waits) == 3


def test_it_waits_as_long_as_the_forge_says(forge: Forge, post: Callable[..., str], time: Time) -> None:
    forge.faults.append(("GET", refused(429, retry_after="17")))
    assert post() == "posted"
    assert time.waits == [17.0]


def test_a_limit_that_lasts_too_long_ends_it(forge: Forge, post: Callable[..., str]) -> None:
    forge.faults.append(("GET", refused(403, retry_after="3600")))
    with pytest.raises(Retry) as caught:
        post()
    assert caught.value.problem.code == "SH984"
    assert forge.bodies() == []


def test_without_the_right_nothing_is_tried_again(forge: Forge, post: Callable[..., str], time: Time) -> None:
    forge.may_write = False
    with pytest.raises(Rejected) as caught:
        post()
    assert caught.value.problem.code == "SH986"
    assert "403 (Resource not accessible by integration)" in caught.value.problem.what
    assert "fork" in caught.value.problem.remedy
    assert time.waits == []


def test_a_bad_token_is_told(forge: Forge, post: Callable[..., str]) -> None:
    with pytest.raises(Rejected) as caught:
        post(token="bad")
    assert "401 (Bad credentials)" in caught.value.problem.what


def test_a_forge_that_never_answers_whether_it_posted_is_told(forge: Forge, post: Callable[..., str]) -> None:
    forge.faults.extend([("POST", refused(500))] * 9)
    with pytest.raises(Unknown) as caught:
        post()
    assert caught.value.problem.code == "SH985"


def test_the_token_follows_no_page_to_another_host(forge: Forge, post: Callable[..., str]) -> None:
    other = Forge("github")
    stop = serve(other)
    try:
        for number in range(3):
            forge.add(f"word {number}", "alice")
        forge.page, forge.next_page_at = 2, other.url
        with pytest.raises(Rejected) as caught:
            post()
    finally:
        stop()
    assert caught.value.problem.code == "SH983"
    assert other.asked == []


def test_the_token_follows_no_redirect(forge: Forge, post: Callable[..., str]) -> None:
    other = Forge("github")
    stop = serve(other)
    try:
        forge.faults.append(("GET", refused(302, Location=f"{other.url}/user")))
        with pytest.raises(Rejected):
            post()
    finally:
        stop()
    assert other.asked == []


def test_the_token_goes_over_no_open_line() -> None:
    with pytest.raises(Rejected) as caught:
        Api("http://forge.example.com/api", {})
    assert caught.value.problem.code == "SH982"


def test_a_workflows_token_that_may_not_ask_who_it_is() -> None:
    forge = Forge("github")
    forge.knows_me = False
    stop = serve(forge)
    try:
        for body in (OLD, NEW):
            with Api(forge.url, github.headers("good")) as api:
                put(github.GitHub(api, "team/policies", 12), MARK, body)
        assert forge.bodies() == [NEW]
    finally:
        stop()


# -- the verb


@pytest.fixture
def here(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline's environment."""
    for name in ("GITHUB_API_URL", "GITHUB_REPOSITORY", "CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID"):
        monkeypatch.delenv(name, raising=False)
    own = {
        "github": {"GITHUB_API_URL": forge.url, "GITHUB_REPOSITORY": "team/policies"},
        "gitlab": {"CI_API_V4_URL": forge.url, "CI_PROJECT_ID": "42", "CI_MERGE_REQUEST_IID": "12"},
    }
    for name, value in own[forge.kind].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(TOKEN, "good")
    (tmp_path / "comment.md").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verb(forge: Forge, *more: str) -> int:
    return execute(["comment", "comment.md", "--forge", forge.kind, *(["--number", "12"] if forge.kind == "github" else []), *more])


def test_the_verb_posts(here: Path, forge: Forge, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(forge) == 0
    assert capsys.readouterr().out.rstrip().endswith("#12: posted")
    assert forge.bodies() == [NEW]


def test_a_fork_without_a_token_is_told_what_it_is(
    here: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN)
    assert verb(forge) == 1
    assert "SH987" in capsys.readouterr().err
    assert forge.asked == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("### no mark\n", "its first line doesn't say which comment it is"),
        (f"{MARK}\n" + "x" * 60_001, "a comment may have 60,000"),
    ],
)
def test_what_is_none_of_ours_is_not_posted(here: Path, forge: Forge, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    (here / "comment.md").write_text(text)
    assert verb(forge) == 1
    assert why in capsys.readouterr().err
    assert forge.asked == []


def test_where_to_comment_has_to_be_known(
    here: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY" if forge.kind == "github" else "CI_MERGE_REQUEST_IID")
    assert verb(forge) == 1
    assert "SH989" in capsys.readouterr().err


def test_a_project_cannot_lead_elsewhere(here: Path, forge: Forge, capsys: pytest.CaptureFixture[str]) -> None:
    for project in ("team/../../user", "team/policies?x=", "../x"):
        assert verb(forge, "--project", project) == 1
        assert "isn't a project" in capsys.readouterr().err


def test_a_forge_that_is_away_is_2(here: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shunter.app.forges.http._WAIT_S", 1000.0)
    monkeypatch.setattr("shunter.app.forges.http._LONGEST_WAIT_S", 1000.0)
    forge.faults.append(("GET", refused(500)))
    assert verb(forge) == 2
    assert "SH984" in capsys.readouterr().err

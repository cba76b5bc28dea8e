"""`carpool sim` as people call it: tables, JSON, plots, and sentences for everything that is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from carpool.cli.main import main
from carpool.cli.replay import name_some
from tests.sim.test_journal import record

SMALL = "job,submit_s,duration_s,tenant,iterations\nlong,0,30,a,60\nshort,1,10,b,20\n"


@dataclass(frozen=True, kw_only=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def carpool(*words: str) -> Ended:
    """One command in this process, from its words to its exit code."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["carpool", "sim", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return Ended(returncode=int(str(ended.value.code)), stdout=out.getvalue(), stderr=err.getvalue())


def carpool_apart(*words: str) -> Ended:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "carpool.cli.main", "sim", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Ended(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CARPOOL", "COLUMNS")):
            monkeypatch.delenv(name)


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    return str(path)


def test_a_trace_under_three_policies_fits_eighty_columns_and_shows_the_bound(small: str) -> None:
    done = carpool("--trace", small, "--policy", "fifo,srtf,fair", "--cluster", "1x1x16GiB")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for word in (
        "average",
        "median",
        "p95",
        "p99",
        "queueing",
        "makespan",
        "preemptions",
        "Jain",
        "worst FTF",
        "bound",
    ):
        assert word in done.stdout


def test_the_figures_of_two_jobs_by_hand(small: str) -> None:
    done = carpool("--trace", small, "--policy", "fifo,srtf", "--quantum", "1s", "--json")
    found = json.loads(done.stdout)
    fifo, srtf = found["policies"]
    assert (fifo["average_s"], fifo["makespan_s"], fifo["device_share"]) == (34.5, 40.0, 1.0)
    assert (srtf["average_s"], srtf["preemptions"]) == (25.25, 1)  # the short one: 1 s to 11.5 s
    assert srtf["ratio_to_first"]["average_s"] == pytest.approx(25.25 / 34.5, rel=1e-6)
    assert found["bound"]["average_s"] == 25.0


def test_json_is_the_same_bytes_for_the_same_seed_on_a_node_and_on_a_cluster(small: str) -> None:
    for words in (["--cluster", "1x1x16GiB"], ["--cluster", "2x2x16GiB", "--seed", "3"]):
        runs = [carpool_apart("--trace", small, "--policy", "fifo,srtf", "--json", *words) for _ in range(2)]
        assert runs[0].returncode == 0, runs[0].stderr
        assert runs[0].stdout == runs[1].stdout
        assert json.loads(runs[0].stdout)["jobs"] == 2


def test_generated_workloads_are_the_same_bytes_for_the_same_seed(tmp_path: Path) -> None:
    words = ["--generate", "lognormal", "--jobs", "20", "--arrival", "poisson", "--tenants", "2", "--fractions"]
    for name in ("one.csv", "two.csv"):
        done = carpool(*words, "--seed", "7", "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert carpool(*words, "--seed", "7").stdout == (tmp_path / "one.csv").read_text()


def test_plots_are_drawn_and_an_html_file_needs_nothing_else(small: str, tmp_path: Path) -> None:
    for name in ("out.png", "out.html"):
        done = carpool("--trace", small, "--plot", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out.html").read_text()
    assert "<svg" in page and "<table>" in page
    assert not [word for word in ("src=", "<link", "<script", "@import") if word in page]


def test_bad_rows_are_an_error_that_lists_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("job,submit_s,duration_s\na,0,1\nb,-1,1\nc,0,nan\n")
    done = carpool("--trace", str(path))
    assert done.returncode == 2
    assert "2 rows are no jobs that can run here, of 3" in done.stderr
    assert f"{path} line 3: submit_s is -1, below 0" in done.stderr
    assert f"{path} line 4: duration_s is 'nan', not a finite number" in done.stderr
    skipped = carpool("--trace", str(path), "--skip-bad", "--json")
    assert skipped.returncode == 0
    assert [row["line"] for row in json.loads(skipped.stdout)["left_out"]] == [3, 4]
    assert "line 3" in skipped.stderr


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("", [], "line 1: the trace is empty"),
        ("submit_s\n0\n", [], "line 1: the column duration_s is missing"),
        ("submit_s,duration_s\n0,nan\n", [], "line 2: duration_s is 'nan', not a finite number"),
        ("submit_s,duration_s\n0,-5\n", [], "line 2: duration_s is -5, below 0"),
        (
            "submit_s,duration_s,cards\n0,1,9\n",
            ["--cluster", "2x4x16GiB"],
            "line 2: job row2 wants 9 cards; the cluster has 8",
        ),
        (
            "submit_s,duration_s,card_bytes\n0,1,20GiB\n",
            ["--cluster", "2x4x16GiB"],
            "line 2: job row2 wants 20.0 GiB of a card; a card has 16.0 GiB",
        ),
        (
            "submit_s,duration_s,models\n0,1,A100\n",
            ["--cluster", "2x4x16GiB:V100"],
            "line 2: job row2 wants a card of A100; the cluster has none",
        ),
        (
            "submit_s,duration_s,tenant\n0,1,bob\n",
            ["--cluster", "2x4x16GiB", "--shares", "alice=4"],
            "line 2: job row2: tenant bob has no share",
        ),
        (SMALL, ["--shares", "alice=0"], "--shares: 'alice=0' gives tenant alice 0; it must be above 0"),
        (SMALL, ["--policy", "best"], "unknown policy 'best'; there are fair, fifo, las"),
        (SMALL, ["--policy", "fifo,fifo"], "name each policy once"),
        (SMALL, ["--cluster", "many"], "--cluster 'many' is no cluster"),
        (SMALL, ["--cluster", "0x8x16GiB"], "is no cluster"),
        (SMALL, ["--plot", "out.gif"], "a plot is a .png or an .html file"),
        (SMALL, ["--plot", "absent/out.png"], "there is no directory"),
        (SMALL, ["--quantum", "soon"], "'soon' is not a length of time"),
        (SMALL, ["--study", "salus"], "say one of --trace, --journal, --generate or --study"),
    ],
)
def test_wrong_input_is_a_sentence_and_exit_2_and_json_where_that_was_asked(
    tmp_path: Path, text: str, words: list[str], sentence: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    done = carpool("--trace", str(path), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    as_json = carpool("--trace", str(path), *words, "--json")
    assert as_json.returncode == 2
    answer = json.loads(as_json.stdout)
    assert sentence in answer["error"]
    assert answer["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say one of --trace"),
        (["--trace", "nothing"], "there is no trace 'nothing'"),
        (["--trace", "nothing.csv"], "nothing.csv cannot be read: No such file or directory\n"),
        (["--study", "nothing"], "there is no study 'nothing'"),
        (["--generate", "nothing"], "--generate 'nothing' is not known"),
        (["--generate", "lognormal", "--arrival", "often"], "it is burst or poisson"),
        (["--generate", "lognormal", "--sigma", "nan"], "--sigma is nan"),
        (["--generate", "lognormal", "--mean", "0"], "--mean is 0.0; it must be between 0.001 and "),
        (["--generate", "mixed", "--base", "salus"], "mixed draws from itp or philly"),
    ],
)
def test_wrong_words_are_a_sentence_and_exit_2(words: list[str], sentence: str) -> None:
    done = carpool(*words)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trace", "philly", "--jobs", "many"], "'many' is not a valid integer"),
        (["--generate", "lognormal", "--sigma", "wide"], "'wide' is not a valid float"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_an_option_of_the_wrong_type_is_json_where_that_was_asked(words: list[str], sentence: str) -> None:
    done = carpool(*words, "--json")
    assert done.returncode == 2
    assert sentence in json.loads(done.stdout)["error"]
    assert json.loads(done.stdout)["exit_code"] == 2
    plain = carpool(*words)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert sentence in plain.stderr


def test_names_that_are_cut_say_how_many_more() -> None:
    assert name_some(["a", "b"]) == "a, b"
    assert name_some([*"abcdefg"]) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize("cluster", ["2x2x16GiB", "1x1x16GiB"])
def test_weights_of_tenants_are_for_fair(small: str, cluster: str) -> None:
    words = ["--trace", small, "--cluster", cluster, "--weights", "default=2", "--json"]
    assert carpool(*words, "--policy", "fifo,fair").returncode == 0
    assert "--weights counts under fair" in json.loads(carpool(*words, "--policy", "fifo").stdout)["error"]


def test_a_journal_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    done = carpool("--journal", "--json")
    assert done.returncode == 2
    assert "there is no journal" in json.loads(done.stdout)["error"]


def test_a_journal_is_replayed_and_says_what_one_more_device_would_have_done(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    done = carpool("--journal", str(tmp_path / "journal.db"), "--add-device", "4GiB")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "every one as recorded" in said
    assert "with 1 more device your average wait would have been" in said
    assert "over 6 jobs" in said
    other = json.loads(carpool("--journal", str(tmp_path / "journal.db"), "--policy", "fifo,srtf", "--json").stdout)
    assert other["reproduced"]
    assert [row["policy"] for row in other["simulated"]] == ["fair", "fifo", "srtf"]
    assert {row["jobs"] for row in other["simulated"]} == {other["recorded"]["wait_jobs"]} == {other["jobs"]}


def test_turn_by_turn_can_be_asked_for_and_nothing_need_be_known(small: str) -> None:
    words = ["--trace", small, "--cluster", "2x2x16GiB", "--policy", "fifo,las", "--json"]
    found = json.loads(carpool(*words, "--turns", "--unknown").stdout)
    assert (found["engine"], found["cards"]) == ("node", 1)
    assert json.loads(carpool(*words).stdout)["engine"] == "cluster"

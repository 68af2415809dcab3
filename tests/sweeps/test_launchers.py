"""Sweeps on several processes record the same as a serial sweep, bit for bit, although a worker is killed during a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from attn_zoo.cli import main
from attn_zoo.cli.job import Command, Job
from attn_zoo.cli.launch import _LAUNCHERS, Lost, attempt, ray_arguments
from attn_zoo.cli.run import plan
from attn_zoo.records import RunRecord, Store
from attn_zoo.records.verify import verify

TASK = ["task=listops", "task.length=24", "task.train=200", "task.valid=50", "task.test=50"]  # needs neither timm nor scikit-learn
SMALL = [*TASK, "budget.steps=30", "budget.evaluate_every=15", "model.dim=16", "model.heads=2", "threads=1"]
SWEEP = ["run", "-m", "attention=performer,none", *SMALL]


def zoo(*words: str, folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["attn-zoo", *words])
        return main(words)


def found(folder: Path) -> dict[str, object]:
    """Return each record without its measurements and dates, by run id."""
    records, damaged = Store(folder / "runs").load()
    assert damaged == []
    assert len(records) == len({record.run_id for record in records}), "no run is recorded twice"
    return {record.run_id: facts(record) for record in records}


def facts(record: RunRecord) -> object:
    curve = [(point["step"], point["train_loss"], point["valid"]) for point in record.curve]
    return record.status, record.spec, record.scores, record.data, record.counted, record.chance, curve, record.warnings


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("serial")
    assert zoo(*SWEEP, "seed=1,2", "report=false", folder=folder) == 0
    return found(folder)


def test_no_worker_is_started_where_all_is_recorded(tmp_path, monkeypatch, capsys):
    assert zoo(*SWEEP, "report=false", folder=tmp_path) == 0
    monkeypatch.setitem(_LAUNCHERS, "joblib", lambda order, jobs: pytest.fail("workers are started"))
    capsys.readouterr()
    assert zoo(*SWEEP, "launch=joblib", "workers=2", "report=false", folder=tmp_path) == 0
    assert capsys.readouterr().out.count("recorded already") == 3, "said of the whole and of either run"
    with pytest.raises(pytest.fail.Exception, match="workers are started"):
        zoo(*SWEEP, "seed=2", "launch=joblib", "workers=2", "report=false", folder=tmp_path)


def holder(claim: Path) -> int | None:
    """Return the id of the process that executes a run, which holds the lock on its claim file, or None."""
    try:
        inode = str(claim.stat().st_ino)
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) != os.getpid():
            return int(words[4])
    return None


@contextmanager
def a_worker_is_killed(folder: Path) -> Iterator[list[int]]:
    """Kill the first worker that is seen executing a run."""
    over, killed = threading.Event(), list[int]()

    def watch() -> None:
        while not over.is_set() and not killed:
            for claim in (folder / "runs").glob(".*.claim"):
                pid = holder(claim)
                if pid and not killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


def check_sweep(launch: str, folder: Path, serial: dict[str, object], workers: int, seeds: str = "1,2") -> None:
    """Check that a sweep with a killed worker has the records of the serial sweep and no others.

    Args:
        workers: number of workers; few, because starting one takes seconds.
    """
    with a_worker_is_killed(folder) as killed:
        assert zoo(*SWEEP, f"seed={seeds}", f"launch={launch}", f"workers={workers}", folder=folder) == 0
    assert killed, "no worker was seen at a run"
    same = found(folder)
    assert len(same) == 2 * len(seeds.split(","))
    assert same == {run_id: serial[run_id] for run_id in same}
    assert {finding.kind for finding in verify(folder / "runs").findings} <= {"leftover"}
    for record in Store(folder / "runs").load()[0]:
        told = record.environment
        assert told["command"].startswith("attn-zoo run -m attention=performer,none"), "what was typed, not what a worker is called"
        assert told["threads"] == 1


def test_joblib(serial, tmp_path, capfd):
    check_sweep("joblib", tmp_path, serial, workers=2, seeds="1")
    output, errors = capfd.readouterr()
    assert "seed 1: a worker was killed, probably for lack of memory; the run is tried once more, alone" in errors
    assert output.count("ListOps, costs") == 1, "the leaderboard is printed once, in the end, by the parent"


@pytest.mark.exhaustive
def test_ray(serial, tmp_path, capfd):
    import ray

    os.environ["RAY_DEDUP_LOGS"] = "0"
    try:
        check_sweep("ray", tmp_path, serial, workers=2, seeds="1")
    finally:
        ray.shutdown()
    output, errors = capfd.readouterr()
    assert "tried once more" not in errors, "Ray itself begins the run again"
    assert output.count("ListOps, costs") == 1


@pytest.mark.exhaustive
def test_submitit(serial, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)  # seconds to wait for the result of a job without one
    check_sweep("submitit_local", tmp_path, serial, workers=1, seeds="1")  # each run starts a process
    output, errors = capfd.readouterr()
    assert "seed 1: a worker ended (UncompletedJobError" in errors and "the run is tried once more, alone" in errors
    assert output.count("ListOps, costs") == 1
    assert (tmp_path / ".submitit").is_dir(), "its pickles lie beside the records, not among them"
    assert not list((tmp_path / "runs").rglob("*.pkl"))


SBATCH = """#!{python}
import os, subprocess, sys
script = open(sys.argv[-1]).read()
open({seen!r}, "w").write(script)
own = dict(SLURM_JOB_ID="70", SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_NODEID="0", SLURM_PROCID="0", SLURM_LOCALID="0")
own |= dict(SLURM_JOB_NODELIST="here")
subprocess.Popen(["bash", sys.argv[-1]], env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("Submitted batch job 70")
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do if [[ "$1" == --output || "$1" == --error ]]; then shift; fi; shift; done
"$@"
touch $(dirname $0)/over
"""
SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
if [ -e $(dirname $0)/over ]; then echo "70|COMPLETED|here"; else echo "70|RUNNING|here"; fi
"""


def simulated(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Lay down scripts that simulate commands of Slurm, and let them be found first."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_slurm_is_asked_for_what_the_configuration_says(tmp_path, monkeypatch):
    """Scripts simulate Slurm: sbatch starts a job without a queue, and srun starts the command of the job's script."""
    seen = tmp_path / "batch.sh"
    sbatch = SBATCH.format(python=sys.executable, seen=str(seen))
    simulated(tmp_path / "bin", monkeypatch, sbatch=sbatch, srun=SRUN, sacct=SACCT)
    asked = ["launch=slurm", "threads=1", "workers=1", "launcher.additional_parameters={mail-type: FAIL}"]
    words = ["attention=none", *SMALL[:-1], *asked, "launcher.partition=long", "report=false"]
    assert zoo("run", *words, folder=tmp_path) == 0
    assert [record.status for record in Store(tmp_path / "runs").load()[0]] == ["done"]
    script = seen.read_text(encoding="utf-8")
    for line in ("--cpus-per-task=1", "--mem=16GB", "--time=240", "--partition=long", "--mail-type=FAIL"):
        assert f"#SBATCH {line}\n" in script, script
    assert "#SBATCH --signal=USR2@120\n" in script, "the job is warned, to be queued again"


def test_a_queue_that_takes_no_jobs_is_said_and_not_asked_again(tmp_path, monkeypatch, capsys):
    refused = "#!/bin/bash\necho asked >> asked; echo 'sbatch: error: invalid partition specified: long' >&2; exit 1\n"
    simulated(tmp_path / "bin", monkeypatch, sbatch=refused, srun=SRUN)
    assert zoo("run", "launch=slurm", "seed=1,2", *SMALL, folder=tmp_path) == 2
    assert "the launcher failed: sbatch: error: invalid partition specified: long" in capsys.readouterr().err
    assert (tmp_path / "asked").read_text(encoding="utf-8").count("asked") == 1


def test_ray_is_given_the_cores_of_its_workers_or_a_cluster():
    own = ray_arguments(plan(["launch=ray", "workers=3", "threads=2"]).settings)
    assert (own["num_cpus"], own["include_dashboard"]) == (6, False)
    there = ray_arguments(plan(["launch=ray", "launcher.init.address=auto"]).settings)
    assert there["address"] == "auto" and not {"num_cpus", "object_store_memory"} & set(there)
    assert plan(["launch=ray", "launcher.remote.num_gpus=1", "threads=2"]).settings.launcher["remote"] == {
        "num_cpus": 2,
        "num_gpus": 1,
        "max_retries": 3,
    }


@pytest.mark.parametrize(
    ("package", "words"), [("ray", ["launch=ray"]), ("optuna", ["experiment=tune"]), ("submitit", ["launch=submitit_local"])]
)
def test_without_the_extra_a_message_names_it(package, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("attn_zoo.cli.config.find_spec", lambda name: None if name == package else name)
    assert zoo("run", *words, folder=tmp_path) == 2
    assert (
        f"needs the package {package}, which is not installed. Install it with: pip install 'attn-zoo[sweeps]'"
        in capsys.readouterr().err
    )


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    planned = plan(SMALL)
    outcome = attempt(Command(planned.settings, folder=str(tmp_path / "gone")), planned.jobs[0])
    assert isinstance(outcome, OSError) and "Start the sweep in a folder that all workers share" in str(outcome)


def test_a_worker_that_dies_before_its_run_ends_the_command_with_what_is_left(tmp_path, capfd, monkeypatch):
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def dies(command: Command, jobs: Sequence[Job]) -> list[Lost]:
        return [Lost(TerminatedWorkerError("A worker process was unexpectedly terminated.")) for _ in jobs]

    monkeypatch.setitem(_LAUNCHERS, "joblib", dies)
    assert zoo("run", "-m", "launch=joblib", "seed=1,2", *SMALL, folder=tmp_path) == 1
    output, errors = capfd.readouterr()
    assert errors.count("a worker process ended before it began its run") == 1
    assert "the same command does the missing runs" in errors
    assert "2 runs are not recorded" in output


def test_no_process_outlives_the_tests():
    for child in psutil.Process().children(recursive=True):
        if "raylet" in child.name() or "submitit" in " ".join(child.cmdline()):
            pytest.fail(f"{child} is left over")

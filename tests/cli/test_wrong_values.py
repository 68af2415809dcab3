"""Values that a command refuses in one line, before it works."""

from __future__ import annotations

import pytest

from attn_zoo.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("check none --device gpu", "--device must be a device type of PyTorch, such as cpu or cuda; got 'gpu'"),
        ("analyze error --seed 18446744073709551616", "seed must be an integer from 0 to 2**63 - 1"),
        ("transplant attention=none seed=18446744073709551616", "seed must be an integer from 0 to 2**63 - 1"),
        ("tune experiment=tune,curves attention=none task=digits", "experiment= must name one experiment"),
        (
            "run experiment=tune attention=none task=digits tuning.sampler=grid "
            "+tuning.space={budget.learning_rate:'choice(0.1)',budget.warmup_steps:'range(4,8,0)'}",
            "the step of a range must not be 0",
        ),
        ("measure experiment=growth read=a.json output=b.json", "Leave one of them out"),
        ("records verify --records pyproject.toml", "is a file. Name the folder that holds the records"),
    ],
)
def test_it_is_refused(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert main(words.split()) == 2
    errors = capsys.readouterr().err
    assert says in " ".join(errors.split()) and "Traceback" not in errors

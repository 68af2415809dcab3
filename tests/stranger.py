"""Virtual environment like that of a new user, which borrows this environment's packages to save time and network access."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

from patience import HANG

PROGRAMS = {
    "attn-zoo": "from attn_zoo.cli import main\nsys.exit(main())",
    "pip": "import runpy\nrunpy.run_module('pip', run_name='__main__', alter_sys=True)",
    "pytest": "import runpy\nrunpy.run_module('pytest', run_name='__main__', alter_sys=True)",
}

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""Settings under which a plain ``pip install`` works offline; pip reads the 0 of the third as no build isolation."""


def environment(home: Path) -> Path:
    """Create the environment below ``home``; return the folder of its programs."""
    venv.create(home / "env", with_pip=False)
    here = sysconfig.get_paths()["purelib"]
    site = next((home / "env" / "lib").glob("python*/site-packages"))
    # addsitedir also runs the borrowed folder's .pth files, and with them the editable install of the zoo.
    (site / "borrowed.pth").write_text(f"import site; site.addsitedir({here!r})\n", encoding="utf-8")
    programs = home / "env" / "bin"
    for name, code in PROGRAMS.items():
        (programs / name).write_text(f"#!{programs}/python\nimport sys\n{code}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    return programs


def run(*command: str | Path, cwd: Path, programs: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in ``cwd`` without this process's variables for Python and pytest; ``programs`` comes first on its PATH."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "COVERAGE", "PIP_"))}
    path = os.pathsep.join(filter(None, [str(programs) if programs else "", settings.get("PATH", "")]))
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**settings, **OFFLINE, "PATH": path},
        timeout=HANG,
        check=False,
    )

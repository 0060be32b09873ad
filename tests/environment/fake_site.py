"""Makes a Python environment that looks like an NGC container, and an index of tiny wheels.

Only files: empty packages with the metadata that pip and the set-up read, with invented versions.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

ALSO_BORROWED = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")


def base_python(folder: Path) -> Path:
    """A new environment with nothing but pip and setuptools; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = site_packages(folder)
    for name in ALSO_BORROWED:
        real = next((p for p in map(Path, sys.path) if (p / name).is_dir()), Path("/none"))
        for path in [real / name, *real.glob(f"{name}-*.dist-info")]:
            if path.exists():
                (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """The folder of an environment where packages are installed."""
    return next((environment / "lib").glob("python3*/site-packages"))


def install(environment: Path, name: str, version: str, requires: Iterable[str] = ()) -> Path:
    """Put an empty package into an environment, as if pip had; returns the package's folder."""
    site, module = site_packages(environment), name.replace("-", "_")
    package = site / module
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(name, version, requires))
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("container\n")
    return package


def wheel(index: Path, name: str, version: str, requires: Iterable[str] = ()) -> None:
    """Write a wheel with an empty package."""
    index.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": _metadata(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(index / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def borrow(index: Path, name: str) -> None:
    """Write a wheel of a pure Python package as it is installed in this environment."""
    index.mkdir(exist_ok=True)
    distribution = importlib.metadata.distribution(name)
    path = index / f"{name.replace('-', '_')}-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in distribution.files or []:
            if "__pycache__" not in file.parts and file.parts[0] != "..":
                archive.write(Path(str(file.locate())), str(file))


def checkout(repository: Path, folder: Path) -> Path:
    """Copy what the set-up touches of this repository to a folder."""
    shutil.copytree(
        repository / "scripts",
        folder / "scripts",
        ignore=shutil.ignore_patterns("__pycache__", ".*"),
    )
    for name in ("pyproject.toml", "requirements-cpu.txt", "requirements-gpu.txt"):
        shutil.copy(repository / name, folder / name)
    for name in ("rn50lib", "data_prep"):
        (folder / name).mkdir()
        shutil.copy(repository / name / "__init__.py", folder / name / "__init__.py")
    return folder


def _metadata(name: str, version: str, requires: Iterable[str]) -> str:
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return head + "".join(f"Requires-Dist: {line}\n" for line in requires)

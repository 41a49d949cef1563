"""Builds and runs an image where no container engine is: its Dockerfile's steps, in plain directories.

The base image is this machine: ``/usr`` and ``/etc``, and in ``/usr/local`` the Python of these tests. What
an engine does is done by ``unshare``, ``mount`` and ``chroot``: a root of its own for each stage, layers that
keep times in whole seconds, a user, a root that nobody can write to. Only root may do that.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parent.parent
_LINKS = ("bin", "sbin", "lib", "lib64")
# The image of Python names its library in ld.so.cache, which here is that of the machine.
_BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/lib"}


@dataclass
class Stage:
    """One stage of a build, and what it says about running it.

    Attributes:
        root: The directory that is its root.
        environment: What ``ENV`` has set.
        arguments: What ``ARG`` has set.
        directory: The working directory.
        user: Whom it runs as.
        health: The command of ``HEALTHCHECK``.
        entry: The words of ``ENTRYPOINT``.
        words: The words of ``CMD``.
        stop_signal: That of ``STOPSIGNAL``.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(_BASE))
    arguments: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    stop_signal: str = ""

    def __post_init__(self) -> None:
        """Make the places that the base image is mounted on."""
        for name in ("usr", "etc", "proc", "dev", "tmp", "root"):
            (self.root / name).mkdir(parents=True)
        for name in _LINKS:
            if (Path("/") / name).is_symlink():
                (self.root / name).symlink_to(os.readlink(Path("/") / name))

    def command(self, words: list[str], how: str = "", binds: Mapping[str, Path] | None = None) -> list[str]:
        """A command in this root, with mounts that only it sees.

        Args:
            words: The command.
            how: Options of ``chroot``, such as a user. With any, nothing in the root can be written to.
            binds: More that is mounted, for running only to be read: places in the root, and what is there.
        """
        root = shlex.quote(str(self.root))
        option = "ro,bind" if how else "bind"
        steps = ["set -e"]
        if how:
            steps += [f"mount --bind {root} {root}", f"mount -o remount,ro,bind {root}"]
        base = {"usr": "/usr", "etc": "/etc"}
        if sys.base_prefix != "/usr":
            base["usr/local"] = sys.base_prefix
        for place, source in base.items():
            steps += [f"mount --bind {shlex.quote(source)} {root}/{place}"]
            steps += [f"mount -o remount,ro,bind {root}/{place}"]
        for place, bound in (binds or {}).items():
            target = f"{root}/{place.lstrip('/')}"
            steps += [
                f"mount --bind {shlex.quote(str(bound))} {target}",
                f"mount -o remount,{option} {target}",
            ]
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        inner = f"cd {shlex.quote(self.directory)} && exec {shlex.join(words)}"
        steps += [f"exec /usr/sbin/chroot {how} {root} /bin/sh -c {shlex.quote(inner)}"]
        return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "\n".join(steps)]


def can_be_run() -> bool:
    """Whether this machine lets us mount in a namespace of our own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Build:
    """The stages of a Dockerfile, built one after the other.

    Attributes:
        stages: By name, or by number.
        image: The last one.
    """

    def __init__(
        self, dockerfile: Path, folder: Path, given: Mapping[str, str], binds: Mapping[str, Path]
    ) -> None:
        """Build.

        Args:
            dockerfile: The Dockerfile; its context is the repository.
            folder: Where the roots shall be.
            given: The ``--build-arg`` options.
            binds: What the building stages see besides, by the place in their roots.
        """
        self.stages: dict[str, Stage] = {}
        self._folder, self._given, self._binds = folder, given, dict(binds)
        self._globals: dict[str, str] = {}
        with dockerfile.open("rb") as file:
            steps = DockerfileParser(fileobj=file).structure
        for step in steps:
            if step["instruction"] != "COMMENT":
                getattr(self, f"_{step['instruction'].lower()}")(step["value"])

    @property
    def image(self) -> Stage:
        return list(self.stages.values())[-1]

    def _filled(self, text: str) -> str:
        stage = self.image if self.stages else None
        known = {**stage.arguments, **stage.environment} if stage else self._globals
        return re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], text)

    def _from(self, value: str) -> None:
        name = re.fullmatch(r"python:\$\{PYTHON\}-slim-bookworm(?: AS (\w+))?", value)
        assert name is not None, f"this machine can stand for a Python image, not for {value}"
        stage = name[1] or str(len(self.stages))
        self.stages[stage] = Stage(self._folder / stage)

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        where = self.image.arguments if self.stages else self._globals
        where[name] = self._given.get(name, default)

    def _env(self, value: str) -> None:
        for word in shlex.split(self._filled(value)):
            name, _, text = word.partition("=")
            self.image.environment[name] = text

    def _workdir(self, value: str) -> None:
        self.image.directory = value
        self._inside(value).mkdir(parents=True, exist_ok=True)

    def _copy(self, value: str) -> None:
        words = shlex.split(value)
        stage = self.image
        source = ROOT
        if words[0].startswith("--from="):
            source = self.stages[words.pop(0).removeprefix("--from=")].root
        *names, target = words
        for name in names:
            origin = source / name.lstrip("/")
            place = self._inside(os.path.join(stage.directory, target))
            if origin.is_dir():
                # Not as shutil does it: a layer keeps whole seconds.
                ignored = shutil.ignore_patterns("__pycache__") if source == ROOT else None
                shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copy2(origin, place / origin.name if target.endswith("/") else place)
            in_whole_seconds(place)

    def _run(self, value: str) -> None:
        stage, binds = self.image, dict(self._binds)
        mounts = re.match(r"(?:--mount=type=cache,target=\S+\s+)*", value)
        assert mounts is not None
        for place in re.findall(r"target=(\S+)", mounts[0]):
            cache = Path.home() / ".cache" / Path(place).name
            cache.mkdir(parents=True, exist_ok=True)
            binds[place] = cache
        value = value[mounts.end() :]
        for place in binds:
            self._inside(place).mkdir(parents=True, exist_ok=True)
        pip = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
        done = subprocess.run(
            stage.command(["/bin/sh", "-c", value], binds=binds),
            env={"HOME": "/root", **pip, **stage.arguments, **stage.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{value}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def _user(self, value: str) -> None:
        self.image.user = value

    def _healthcheck(self, value: str) -> None:
        self.image.health = json.loads(value[value.index("[") :])

    def _entrypoint(self, value: str) -> None:
        self.image.entry = json.loads(value)

    def _cmd(self, value: str) -> None:
        self.image.words = json.loads(value)

    def _stopsignal(self, value: str) -> None:
        self.image.stop_signal = value

    def _label(self, value: str) -> None:
        assert value

    def _expose(self, value: str) -> None:
        assert value

    def _inside(self, place: str) -> Path:
        return self.image.root / place.lstrip("/")


def in_whole_seconds(place: Path) -> None:
    """Cut the times of all files as the archives do that layers are kept in."""
    for path in (place, *place.rglob("*")):
        seconds = int(path.lstat().st_mtime)
        os.utime(path, (seconds, seconds), follow_symlinks=False)

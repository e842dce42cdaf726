"""New files of a folder that take their places together or not at all, even if the process is killed.

They are written under their own names into a staging folder, hidden beside their places. When all of them are
complete and on the disk, one rename of that folder commits them; then each is moved to its place. The
committed folder is the journal: whoever finds one finishes its moves (`recover`), or, where nothing may be
written, reads through it (`pending`).

    .dasp-TOKEN.new/          being written; left over once no process holds it
    .dasp-TOKEN.commit/       committed
        B.000.rs              takes the place of ../B.000.rs
        remove/B.004.rs       empty: ../B.004.rs is removed
        aside/B.000.rs        empty: what lies at ../B.000.rs stays, as ../B.000.rs.TOKEN.aside

Processes keep out of each other's way by `flock` on the folders, where the file system has it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX, _NEW, _COMMIT, _PARTIAL = ".dasp-", ".new", ".commit", ".partial"
_REMOVE, _ASIDE = "remove", "aside"
_MOST_NAME_BYTES = 255
_END = len(".000.rs")
"""What tells the names of shards of one file apart is at their end."""


def shown(path: str | os.PathLike[str]) -> str:
    r"""Return a path as messages show it: as it is, or quoted and escaped where it would not print.

    Examples
    --------
    >>> print(shown("a b"), shown("a\nb"))
    a b 'a\nb'
    """
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an OSError that names no file, or one of the hidden ones, name this."""
    try:
        yield
    except OSError as error:
        if error.filename is None or _PREFIX in str(error.filename):
            error.filename = os.fspath(path)
            if error.filename2 is not None:
                del error.filename2  # None would be shown
        raise


@contextlib.contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold a folder against other processes, and wait for them; yields whether the file system can."""
    with contextlib.ExitStack() as stack:
        held = False
        if fcntl is not None:
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                held = True
        yield held


def _hold(path: Path) -> int | None:
    """Mark a new file or folder as in use by this process; returns what keeps the mark, until closed."""
    if fcntl is None:
        return None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None


def _ours(folder: Path, suffix: str) -> list[Path]:
    return sorted(
        folder / name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(suffix)
    )


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder that this process holds: nobody uses it any more."""
    for suffix in (_NEW, _PARTIAL):
        for path in _ours(folder, suffix):
            descriptor = _hold(path)
            if descriptor is not None:
                _remove_all(path)
                os.close(descriptor)


def _remove_all(path: Path, depth: int = 2) -> None:
    """Remove a file, or a folder of ours with what is in it, as far as that is possible."""
    with contextlib.suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            os.unlink(path)
            return
        with contextlib.suppress(OSError):  # to list it takes a file descriptor, and there may be none
            os.rmdir(path)
            return
        for name in os.listdir(path) if depth else ():  # no deeper than ours are: others may be planted
            _remove_all(path / name, depth - 1)
        os.rmdir(path)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def refuse_existing(place: Path, force: bool) -> None:
    """Refuse a place that is taken, or that no file can be moved to.

    Raises
    ------
    ValueError
        If something is there, unless it is a file or a link and `force` is given.
    """
    if not os.path.lexists(place):
        return
    if not force:
        raise ValueError(f"{shown(place)} exists; allow it to be replaced (force), or choose another place")
    if not _replaceable(place):
        raise ValueError(f"{shown(place)} exists and is no file; choose another place, or move it away")


def _replaceable(place: Path) -> bool:
    kind = os.lstat(place).st_mode
    return stat.S_ISREG(kind) or stat.S_ISLNK(kind)


def _create(path: Path, mode: int) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return open(os.open(path, flags, mode | 0o600), "r+b")


def _close_quietly(file: BinaryIO) -> None:
    """Close a file that will be removed; that what it still buffers cannot be written does not matter."""
    with contextlib.suppress(OSError):
        file.close()


class Stage:
    """New files of one folder; a context that leaves nothing behind unless it was committed.

    Parameters
    ----------
    folder : Path
        Exists.
    replace : bool
        Whether files that exist may be replaced.
    """

    def __init__(self, folder: Path, *, replace: bool) -> None:
        self._folder, self._replace = folder, replace
        self._new = folder / f"{_PREFIX}{secrets.token_hex(4)}{_NEW}"
        self._open: dict[str, BinaryIO] = {}
        self._descriptor: int | None = None

    def __enter__(self) -> Stage:
        try:
            with locked(self._folder) as held, naming(self._folder):
                if held:
                    remove_leftovers(self._folder)
                os.mkdir(self._new)
                self._descriptor = _hold(self._new)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            _close_quietly(file)
        if self._descriptor is not None:
            os.close(self._descriptor)
        _remove_all(self._new)

    def create(self, name: str, mode: int) -> BinaryIO:
        """Open a new file that will be called `name`, with no more permissions than `mode`."""
        with naming(self._folder / name):
            self._open[name] = _create(self._new / name, mode)
        return self._open[name]

    def remove(self, name: str) -> None:
        """Let a file of the folder go when the new ones come."""
        self._mark(_REMOVE, name)

    def set_aside(self, name: str) -> Path:
        """Keep what lies at the place of a new file under another name, which is returned."""
        self._mark(_ASIDE, name)
        return _aside(self._folder / name, self._new.name.removesuffix(_NEW))

    def _mark(self, kind: str, name: str) -> None:
        with naming(self._folder / name):
            os.makedirs(self._new / kind, exist_ok=True)
            _create(self._new / kind / name, 0o600).close()

    def commit(self) -> None:
        """Move every file to its place.

        Raises
        ------
        ValueError
            If a place was taken meanwhile and may not be. Nothing has happened then.
        OSError
            If the disk reports an error: before the rename that commits nothing has happened; after it the
            next command finishes the moves.
        """
        for name, file in self._open.items():
            with naming(self._folder / name):
                file.flush()
                os.fsync(file.fileno())
                file.close()
        for marks in (self._new / _REMOVE, self._new / _ASIDE, self._new):
            with naming(self._folder):
                if marks.is_dir():
                    sync_folder(marks)
        with locked(self._folder), naming(self._folder):
            _finish_all(self._folder)
            if not self._replace:
                for name in self._open:
                    refuse_existing(self._folder / name, False)
            committed = self._new.with_suffix(_COMMIT)
            os.rename(self._new, committed)
            sync_folder(self._folder)
            _finish(committed)


def _aside(place: Path, token: str) -> Path:
    """Return where what lies at a place is kept, by the commit of that token."""
    suffix = f".{token.removeprefix(_PREFIX)}.{_ASIDE}"
    name, end = os.fsencode(place.name)[:-_END], os.fsencode(place.name)[-_END:]
    room = name_limit(place.parent) - len(suffix) - _END
    return place.with_name(os.fsdecode(name[:room] + end) + suffix)


def _names(folder: Path) -> list[str]:
    """Return the names of the shard files in a folder of ours, which may have been planted there."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.name.endswith(".rs") and e.is_file(follow_symlinks=False))


def _finish(committed: Path) -> list[Path]:
    """Do what a committed folder says, as far as it is not done yet; returns the places that were filled."""
    folder = committed.parent
    aside = _names(committed / _ASIDE)
    places = [folder / name for name in _names(committed)]
    for place in places:
        kept = _aside(place, committed.name.removesuffix(_COMMIT))
        taken = os.path.lexists(place) and (place.name in aside or not _replaceable(place))
        if taken and not os.path.lexists(kept):
            os.rename(place, kept)
        with contextlib.suppress(FileNotFoundError):  # another process finishes it too, where none can lock
            os.replace(committed / place.name, place)
    for name in _names(committed / _REMOVE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
    sync_folder(folder)
    _remove_all(committed)
    return places


def _finish_all(folder: Path) -> list[Path]:
    return [place for committed in _ours(folder, _COMMIT) for place in _finish(committed)]


def recover(folder: Path) -> list[Path]:
    """Finish what a killed process had committed in a folder.

    Returns
    -------
    list of Path
        The places that were filled; almost always none.

    Raises
    ------
    OSError
        If the folder cannot be read or written; `pending` tells then what is where.
    """
    if not _ours(folder, _COMMIT):
        return []
    with locked(folder), naming(folder):
        return _finish_all(folder)


def pending(folder: Path) -> dict[Path, Path | None]:
    """Return where the file of each place lies that an unfinished commit is about; None: it is gone."""
    found: dict[Path, Path | None] = {}
    for committed in _ours(folder, _COMMIT):
        found |= {folder / name: None for name in _names(committed / _REMOVE)}
        found |= {folder / name: committed / name for name in _names(committed)}
    return found


@contextlib.contextmanager
def new_file(place: Path, mode: int, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file that takes its place when the block ends well, and leaves nothing behind if it does not.

    Nobody can read it who could not read what it replaces.

    Raises
    ------
    ValueError
        If the place is taken and `force` is not given, or by what is no file.
    """
    refuse_existing(place, force)
    if os.path.islink(place):
        place = Path(os.path.realpath(place))
        refuse_existing(place, force)
    with contextlib.suppress(OSError):
        mode &= stat.S_IMODE(os.stat(place).st_mode)
    partial = place.with_name(f"{_PREFIX}{secrets.token_hex(4)}{_PARTIAL}")
    with contextlib.ExitStack() as stack, naming(place):
        stack.callback(_remove_all, partial)
        with locked(place.parent) as held:
            if held:
                remove_leftovers(place.parent)
            file = _create(partial, mode)
            stack.callback(_close_quietly, file)
            descriptor = _hold(partial)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        _move(partial, place, force)
        sync_folder(place.parent)


def _move(partial: Path, place: Path, force: bool) -> None:
    """Give a file its name; without force never over another, however late that came."""
    if not force:
        try:
            os.link(partial, place)
            return
        except FileExistsError:
            refuse_existing(place, False)
            raise
        except OSError:  # a file system without links
            refuse_existing(place, False)
    os.replace(partial, place)


def name_limit(folder: Path) -> int:
    """Return the most bytes of a name in a folder, or in the nearest one above that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    limit: Any = None
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows has no pathconf
        limit = os.pathconf(folder, "PC_NAME_MAX")
    return int(limit) if limit and limit > 0 else _MOST_NAME_BYTES

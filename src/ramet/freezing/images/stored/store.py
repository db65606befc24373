"""A store of images: a folder of the owner, which several engines may use at once.

    FOLDER/format             "ramet images 1"
    FOLDER/key                32 random bytes: whoever has them can write images that this store trusts
    FOLDER/names/NAME         the id of the image that has this name
    FOLDER/images/ID/         manifest.json, manifest.mac, threads, loaded, pages, hashes; pages.1, pages.2, ...
    FOLDER/sandboxes/NAME     the journal of a sandbox that is on disk
    FOLDER/images/.new-ID/    an image that is being written; its writer holds a lock on the folder

An image appears by one rename of its folder, after everything in it has reached the disk, and gets its name by another
rename. A crash at any moment leaves the old image under the name or the new one. Nothing in a folder that has its id
ever changes. Pages that an image shares with an earlier one are in a page file of that one, which the new folder has as
well, by a hard link: either can be removed without a look at the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator

from ramet.freezing.images.manifest import MANIFEST_BYTES_AT_MOST, ImageRefused, Manifest
from ramet.isolation.files.journals import Journals
from ramet.protocol.lazy_dataclasses import dataclass

FORMAT_LINE = b"ramet images 1\n"
FREE_SHARE = 10  # a tenth of the disk is left to others
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ID = re.compile(r"img_[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TEMPLATE_PREFIX = "template-"
PAST_PREFIX = "past-"  # of points, which have a budget of their own
PASSING_PREFIX = "passing-"
_PASSING_SECONDS = 3600.0
_PAGES = re.compile(r"pages(\.[0-9])?")
_KEY_BYTES = 32
_SMALL = 4096
# Of each file of an image that is read whole. The state is the largest: it has what waits in queues and deleted files,
# at most 64 MiB (`descriptors/bounds.py`), in base64.
PART_BYTES_AT_MOST = 128 << 20


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image as lists show it."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    used: float  # seconds since 1970


class ImageStore:
    """Owns descriptors of the folder. Its methods block: call them from a thread of their own."""

    def __init__(self, folder: int) -> None:
        """Takes the descriptor over. Raises OSError, or ImageRefused for a folder of another format."""
        self._folder = folder
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, folder)
            _check_own(folder, "the folder of images")
            self._prepare_format()
            self._names = _subfolder(folder, "names")
            undo.callback(os.close, self._names)
            self._images = _subfolder(folder, "images")
            undo.callback(os.close, self._images)
            self._key = self._read_key()
            self.journals = Journals(folder)
            undo.pop_all()

    def close(self) -> None:
        self.journals.close()
        for descriptor in (self._images, self._names, self._folder):
            os.close(descriptor)

    @property
    def folder(self) -> int:
        return self._folder

    @property
    def hash_key(self) -> bytes:
        """Of the hashes of pages."""
        return hmac.digest(self._key, b"hashes of pages", "sha256")[:16]

    def _prepare_format(self) -> None:
        try:
            found = _read(self._folder, "format", _SMALL)
        except FileNotFoundError:
            _replace(self._folder, "format", FORMAT_LINE)
            return
        if found != FORMAT_LINE:
            raise ImageRefused(
                f"the folder of images is of another format: {found[:40]!r}",
                hint="another version of Ramet wrote it; remove the folder to begin anew",
            )

    def _read_key(self) -> bytes:
        """The key, made by the first engine that needs one: of two, the one that links it first."""
        with contextlib.suppress(FileNotFoundError):
            return self._checked_key(_read(self._folder, "key", _SMALL))
        temporary = f".key-{secrets.token_hex(8)}"
        _write(self._folder, temporary, secrets.token_bytes(_KEY_BYTES))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, "key", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            os.unlink(temporary, dir_fd=self._folder)
        return self._checked_key(_read(self._folder, "key", _SMALL))

    def _checked_key(self, key: bytes) -> bytes:
        if len(key) != _KEY_BYTES:
            raise ImageRefused(f"the key of the images has {len(key)} bytes, expected {_KEY_BYTES}")
        return key

    # Reading

    def find(self, name: str) -> str | None:
        """The id of the image that has this name."""
        try:
            found = _read(self._names, _checked_name(name), _SMALL).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        if not _ID.fullmatch(found):
            raise ImageRefused(f"the name {name} leads to no image")
        return found

    def read(self, image_id: str) -> OpenImage:
        """An image whose manifest was written with the key of this store. Raises ImageRefused or OSError."""
        folder = os.open(_checked_id(image_id), _FOLDER, dir_fd=self._images)
        pages: list[int] = []
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, folder)
            data = _read(folder, "manifest.json", MANIFEST_BYTES_AT_MOST)
            # Before it is parsed: the code that reads it sees only what an engine of this owner has written.
            if not hmac.compare_digest(_read(folder, "manifest.mac", _SMALL), self._mac(data)):
                raise ImageRefused(f"image {image_id} was not written with the key of this store")
            manifest = Manifest.read(data)
            if manifest.id != image_id:
                raise ImageRefused(f"image {image_id} says that it is {manifest.id!r:.60}")
            for name, size in manifest.page_files:
                pages.append(_open_pages(folder, name, size))
                undo.callback(os.close, pages[-1])
            undo.pop_all()
        return OpenImage(manifest, folder, tuple(pages))

    def size(self, image_id: str) -> int:
        return _size(self._images, _checked_id(image_id))

    def touch(self, image_id: str) -> None:
        """Mark it as used now: the least recently used go first."""
        with contextlib.suppress(OSError):
            os.utime(_checked_id(image_id), dir_fd=self._images)

    def images(self) -> list[ImageFacts]:
        names: dict[str, list[str]] = {}
        for name in sorted(os.listdir(self._names)):
            with contextlib.suppress(OSError, ImageRefused):
                if _NAME.fullmatch(name) and (image_id := self.find(name)) is not None:
                    names.setdefault(image_id, []).append(name)
        found = []
        for image_id in os.listdir(self._images):
            if _ID.fullmatch(image_id):
                with contextlib.suppress(OSError):
                    about = os.stat(image_id, dir_fd=self._images, follow_symlinks=False)
                    size = _size(self._images, image_id)
                    found.append(ImageFacts(image_id, tuple(names.get(image_id, ())), size, about.st_mtime))
        return sorted(found, key=lambda image: image.used)

    # Writing

    @contextlib.contextmanager
    def new(self) -> Iterator[NewImage]:
        """An image that is being written. If it is not committed inside, nothing of it stays."""
        image_id = f"img_{secrets.token_hex(16)}"
        name = f".new-{image_id}"
        os.mkdir(name, 0o700, dir_fd=self._images)
        folder = os.open(name, _FOLDER, dir_fd=self._images)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # tells other engines that its writer lives
            yield NewImage(image_id, folder)
        finally:
            os.close(folder)
            with contextlib.suppress(FileNotFoundError):  # it was committed
                _remove(self._images, name)

    def commit(self, new: NewImage, manifest: Manifest, name: str) -> int:
        """Make the image complete, then give it the name. The image that had the name before is removed.

        Returns its size in bytes.
        """
        data = manifest.encode()
        _check_readable("manifest.json", data, MANIFEST_BYTES_AT_MOST)
        _write(new.folder, "manifest.json", data)
        _write(new.folder, "manifest.mac", self._mac(data))
        os.fsync(new.folder)
        size = _size_of(new.folder)
        os.rename(f".new-{new.id}", new.id, src_dir_fd=self._images, dst_dir_fd=self._images)
        os.fsync(self._images)
        before = None
        with contextlib.suppress(ImageRefused):
            before = self.find(name)
        _replace(self._names, _checked_name(name), new.id.encode("ascii"))
        # Checked before the old one goes: another engine may have removed the new one while it had no name. If the name
        # means yet another one by now, that engine has saved by it after us, and removed ours.
        if self.find(name) == new.id:
            os.stat(new.id, dir_fd=self._images)
        if before is not None and before != new.id:
            self.remove(before)
        return size

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")

    def forget(self, name: str) -> None:
        """Remove a name and its image."""
        image_id = None
        with contextlib.suppress(ImageRefused):
            image_id = self.find(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_checked_name(name), dir_fd=self._names)
        if image_id is not None:
            self.remove(image_id)

    def remove(self, image_id: str) -> None:
        """Processes that have its pages mapped keep them: the disk is freed when the last one ends."""
        gone = f".gone-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            # By one rename first: another engine sees it whole or not at all.
            os.rename(_checked_id(image_id), gone, src_dir_fd=self._images, dst_dir_fd=self._images)
            _remove(self._images, gone)

    def sweep(self) -> None:
        """Remove what writers left that were killed, and images that no name leads to."""
        for entry in os.listdir(self._images):
            if entry.startswith(".gone-") or (entry.startswith(".new-") and self._is_left(entry)):
                _remove(self._images, entry)
        for image in self.images():
            # A minute, because another engine may be about to give it its name.
            if not image.names and image.used < time.time() - 60:
                self.remove(image.id)
            # On its way out or in, when an engine was killed: what has begun to come out has no name any more.
            if image.names and image.used < time.time() - _PASSING_SECONDS:
                for name in image.names:
                    if name.startswith(PASSING_PREFIX):
                        self.forget(name)

    def _is_left(self, name: str) -> bool:
        try:
            folder = os.open(name, _FOLDER, dir_fd=self._images)
        except OSError:
            return False
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(folder)
        # Between mkdir and flock of a writer that lives it looks as if left: a minute is longer than that takes.
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._images).st_mtime < time.time() - 60
        return False

    def make_room(self, needed: int, name: str, room: StoreRoom) -> None:
        """Before bytes are written for an image of this name. Raises OSError where they must not be.

        Images of templates go to make room, the least recently used ones first; what a user has saved never does.
        """
        if name.startswith(PAST_PREFIX):
            if needed > self._free():
                raise OSError(f"it may take {needed} bytes, which would leave less than a tenth of the disk")
            return
        templates, saved = self._by_kind()
        if name.startswith(TEMPLATE_PREFIX):
            self._remove_oldest(templates, sum(image.size_bytes for image in templates) + needed - room.templates)
        else:
            held = sum(image.size_bytes for image in saved)
            if held + needed > room.saved:
                raise OSError(f"it may take {needed} bytes, and images on disk take {held} of {room.saved} already")
        missing = needed - self._free()
        if missing > 0:
            missing -= self._remove_oldest(self._by_kind()[0], missing)
        if missing > 0:
            raise OSError(f"it may take {needed} bytes, which would leave less than a tenth of the disk")

    def room_for(self, name: str, room: StoreRoom) -> int:
        """How many bytes an image of this name may take, without what the one takes that it replaces."""
        held = sum(image.size_bytes for image in self._by_kind()[1] if name not in image.names)
        return max(0, min(room.saved - held, self._free()))

    def _by_kind(self) -> tuple[list[ImageFacts], list[ImageFacts]]:
        """Images of templates, and all others but points, and those that another engine is about to name."""
        images = [image for image in self.images() if image.names and not image.names[0].startswith(PAST_PREFIX)]
        templates = [image for image in images if all(name.startswith(TEMPLATE_PREFIX) for name in image.names)]
        return templates, [image for image in images if image not in templates]

    def _remove_oldest(self, images: list[ImageFacts], needed: int) -> int:
        freed = 0
        for image in images:
            if freed >= needed:
                break
            self.remove(image.id)
            freed += image.size_bytes
        return freed

    def _free(self) -> int:
        disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize - disk.f_blocks * disk.f_frsize // FREE_SHARE

    # Small files beside the images

    def read_file(self, name: str, most: int) -> bytes:
        """Raises OSError, or ImageRefused where it has more bytes or is another user's."""
        return _read(self._folder, name, most)

    def replace_file(self, name: str, data: bytes) -> None:
        """Raises OSError; then the file is as it was."""
        _replace(self._folder, name, data)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in os.listdir(self._names) if name.startswith(prefix) and _NAME.fullmatch(name))


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """The most bytes that images may take."""

    templates: int
    saved: int


@dataclass(slots=True)
class NewImage:
    """The folder of an image that is being written."""

    id: str
    folder: int

    def link_all(self, base: OpenImage) -> None:
        """Share the page files of another image, which may be removed from now on."""
        for number, (name, _) in enumerate(base.manifest.page_files):
            os.link(name, f"base.{number}", src_dir_fd=base.folder, dst_dir_fd=self.folder, follow_symlinks=False)

    def keep_linked(self, number: int, name: str | None) -> None:
        """Give a page file that was linked its final name, or let it go again."""
        if name is None:
            os.unlink(f"base.{number}", dir_fd=self.folder)
        else:
            os.rename(f"base.{number}", name, src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def create(self, name: str) -> int:
        return os.open(name, _CREATE, 0o600, dir_fd=self.folder)

    def write(self, name: str, data: bytes) -> tuple[str, str]:
        """Write a file whole. Returns its name and digest, for the manifest. Raises ImageRefused if it is too large."""
        _check_readable(name, data, PART_BYTES_AT_MOST)
        _write(self.folder, name, data)
        return name, hashlib.sha256(data).hexdigest()


class OpenImage:
    """An image that is being read, with its page files. Its user closes it."""

    def __init__(self, manifest: Manifest, folder: int, pages: tuple[int, ...]) -> None:
        self.manifest = manifest
        self.pages = pages
        self.folder = folder

    def part(self, name: str) -> bytes:
        """A file of the image, which the manifest vouches for."""
        data = _read(self.folder, name, PART_BYTES_AT_MOST)
        if hashlib.sha256(data).hexdigest() != dict(self.manifest.digests).get(name):
            raise ImageRefused(f"{name} of image {self.manifest.id} is not what was written")
        return data

    def open(self, name: str) -> int:
        """A large file of the image, whose contents another part vouches for; the descriptor is the caller's."""
        return os.open(name, _READ, dir_fd=self.folder)

    def close(self) -> None:
        os.close(self.folder)
        for descriptor in self.pages:
            os.close(descriptor)

    def __enter__(self) -> OpenImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_pages(folder: int, name: str, size: int) -> int:
    if not _PAGES.fullmatch(name):
        raise ImageRefused(f"the image has no page file {name!r:.60}")
    pages = os.open(name, _READ, dir_fd=folder)
    if os.fstat(pages).st_size != size:
        os.close(pages)
        raise ImageRefused(f"{name} of the image has another length than when it was written")
    return pages


def _checked_id(image_id: str) -> str:
    if not _ID.fullmatch(image_id):
        raise ImageRefused(f"{image_id!r:.60} is not the id of an image")
    return image_id


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ImageRefused(f"{name!r:.60} is not the name of an image")
    return name


def _subfolder(folder: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    # NOFOLLOW: a link could lead to a folder that others write to.
    found = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _check_own(found, f"{name} in the folder of images")
    except BaseException:
        os.close(found)
        raise
    return found


def _check_own(descriptor: int, what: str) -> None:
    """Raise ImageRefused for what others could write to, or own: they could give sandboxes another memory."""
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise ImageRefused(
            f"{what} belongs to another user, or others can write to it", hint="chown it to you, and chmod go-w"
        )


def _read(folder: int, name: str, most: int) -> bytes:
    descriptor = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        _check_own(descriptor, f"{name} of the image")
        data = file.read(most + 1)
    if len(data) > most:
        raise ImageRefused(f"{name} of the image has more than {most} bytes")
    return data


def _check_readable(name: str, data: bytes, most: int) -> None:
    """Before it is written: a sandbox whose image nobody can read again would be lost when it goes to sleep."""
    if len(data) > most:
        raise ImageRefused(f"{name} of the image would have {len(data)} bytes, and an image has at most {most}")


def _write(folder: int, name: str, data: bytes) -> None:
    with os.fdopen(os.open(name, _CREATE, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(folder: int, name: str, data: bytes) -> None:
    temporary = f".{name}-{secrets.token_hex(8)}"
    try:
        _write(folder, temporary, data)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _size(images: int, name: str) -> int:
    folder = os.open(name, _FOLDER, dir_fd=images)
    try:
        return _size_of(folder)
    finally:
        os.close(folder)


def _size_of(folder: int) -> int:
    found = [os.stat(entry, dir_fd=folder) for entry in os.listdir(folder)]
    # A page file that several images share counts in equal parts.
    return sum(each.st_blocks * 512 // max(1, each.st_nlink) for each in found)


def _remove(images: int, name: str) -> None:
    shutil.rmtree(name, ignore_errors=True, dir_fd=images)

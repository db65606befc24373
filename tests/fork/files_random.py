"""Runs inside an engine's namespaces (see files_inside): random changes, forks and comparisons of real pods."""

# mypy: ignore-errors
# ruff: noqa: F821

import errno
import hashlib
import random
import stat
import sys

from ramet.isolation.files import layers
from ramet.isolation.files.differences import diff_files
from ramet.isolation.files.layers import FileImage

SMALL = (layers.SMALL_BYTES, layers.SMALL_ENTRIES)


class Zoo:
    """Pods that came from one another, and what can be done to them."""

    def __init__(self, world, seed):
        self.world = world
        self.random = random.Random(seed)
        self.pods = []
        self.names = ["a", "b", "c", "sub", "\n", "\udcff\udcfe", "x" * 255]

    def tops(self, pod):
        tops = ["/srv", "/etc", "/home", "/var", "/mnt", "/dev/shm"]
        if len(pod.files.overlays) > 1:  # the system's own interpreter has no overlay of its own
            prefix = pod.files.overlays[1][1]
            standard = f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
            tops += [f"{prefix}/include", f"{standard}/json"]
        return tops

    def path(self, pod, depth=3):
        """Something that may or may not be there, near what is there."""
        at = self.random.choice(self.tops(pod))
        for _ in range(self.random.randrange(1, depth + 1)):
            if os.path.islink(below(pod, at)):
                break  # it would lead into the engine's own tree
            present = []
            try:
                present = os.listdir(below(pod, at))
            except OSError:
                pass
            at += "/" + self.random.choice(self.names + sorted(present)[:40])
        return below(pod, at)

    def change(self, pod):
        kind = self.random.choice(
            ["write"] * 4
            + ["append", "sparse", "mkdir", "mkdir", "rmtree", "rmtree", "unlink", "unlink", "rename", "rename"]
            + ["link", "symlink", "fifo", "chmod", "utime", "xattr", "swap"]
        )
        try:
            getattr(self, kind)(pod)
        except OSError as error:
            if error.errno not in (
                errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV, errno.EINVAL,
                errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EOPNOTSUPP, errno.EBUSY,
            ):  # fmt: skip
                raise

    def write(self, pod):
        path = self.path(pod)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with open(descriptor, "wb") as file:
            file.write(self.random.randbytes(self.random.choice([0, 1, 100, 4096, 70000, 300000])))

    def append(self, pod):
        with open(os.open(self.path(pod), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK), "wb") as file:
            file.write(self.random.randbytes(10))

    def sparse(self, pod):
        descriptor = os.open(self.path(pod), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with open(descriptor, "wb") as file:
            file.truncate(self.random.choice([5, 1 << 20, 1 << 30]))
            file.seek(self.random.randrange(1 << 20))
            file.write(b"island")

    def mkdir(self, pod):
        os.mkdir(self.path(pod), self.random.choice([0o755, 0o700, 0o2775]))

    def rmtree(self, pod):
        path = self.path(pod)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            for folder, folders, files in os.walk(path, topdown=False):
                for name in files:
                    os.unlink(f"{folder}/{name}")
                for name in folders:
                    (os.unlink if os.path.islink(f"{folder}/{name}") else os.rmdir)(f"{folder}/{name}")
            os.rmdir(path)
            if self.random.random() < 0.5:
                os.mkdir(path)

    def unlink(self, pod):
        os.unlink(self.path(pod))

    def rename(self, pod):
        os.rename(self.path(pod), self.path(pod))

    def swap(self, pod):
        """A file where a folder was, or the other way round."""
        path = self.path(pod)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
            with open(path, "w") as file:
                file.write("was a folder")
        else:
            os.unlink(path)
            os.mkdir(path)

    def link(self, pod):
        os.link(self.path(pod), self.path(pod), follow_symlinks=False)

    def symlink(self, pod):
        os.symlink(self.random.choice(["/etc/passwd", "../a", "\udcff", "y" * 1000]), self.path(pod))

    def fifo(self, pod):
        os.mkfifo(self.path(pod))

    def chmod(self, pod):
        path = self.path(pod)
        if not os.path.islink(path):
            os.chmod(path, self.random.choice([0o644, 0o600, 0o4755, 0o000, 0o777]))

    def utime(self, pod):
        os.utime(
            self.path(pod), ns=(self.random.randrange(10**18), self.random.randrange(10**18)), follow_symlinks=False
        )

    def xattr(self, pod):
        path = self.path(pod)
        if stat.S_ISREG(os.lstat(path).st_mode) or stat.S_ISDIR(os.lstat(path).st_mode):
            os.setxattr(path, "user.note", self.random.randbytes(self.random.choice([0, 5, 500])))

    def describe(self, pod, exactly=True):
        """Everything that can be seen in the places where things are changed."""
        found = {}
        waiting = list(self.tops(pod))
        while waiting:
            path = waiting.pop()
            try:
                about = os.lstat(below(pod, path))
            except FileNotFoundError:
                continue
            kind = stat.S_IFMT(about.st_mode)
            size = about.st_size if kind in (stat.S_IFREG, stat.S_IFLNK) else 0
            what = [kind, stat.S_IMODE(about.st_mode), size]
            if kind == stat.S_IFREG and about.st_size < 1 << 24:
                with open(below(pod, path), "rb") as file:
                    what.append(hashlib.sha256(file.read()).hexdigest())
            elif kind == stat.S_IFREG:
                with open(below(pod, path), "rb") as file:
                    what.append(hashlib.sha256(file.read(1 << 21)).hexdigest())
            elif kind == stat.S_IFLNK:
                what.append(os.readlink(below(pod, path)))
            elif kind == stat.S_IFDIR:
                waiting += [f"{path}/{name}" for name in os.listdir(below(pod, path))]
            if exactly:
                what.append(about.st_mtime_ns if path != "/dev/shm" else 0)  # each pod has made its own
                if kind in (stat.S_IFREG, stat.S_IFDIR):
                    names = os.listxattr(below(pod, path))
                    what.append([(name, os.getxattr(below(pod, path), name)) for name in sorted(names)])
                if kind != stat.S_IFDIR:
                    what.append(about.st_nlink)
            found[path] = what
        return found

    async def fork(self, pod):
        """A child in one of three ways: files copied, files in a layer, files in a layer and those in use copied."""
        way = self.random.choice(["small", "large", "in use"])
        expected = self.describe(pod)
        layers.SMALL_ENTRIES = SMALL[1] if way == "small" else 0
        written = sorted(os.fsencode(path) for path, what in expected.items() if what[0] == stat.S_IFREG)
        written = [path for path in written if pod.files.find_written([path])]
        used = self.random.sample(written, min(len(written), 5)) if way == "in use" else None
        image = FileImage.capture(pod, used)
        layers.SMALL_BYTES, layers.SMALL_ENTRIES = SMALL
        children = [await self.world.pod(image) for _ in range(2)]
        image.close()
        for child in children:
            seen = self.describe(child)
            assert seen == expected, (way, difference(expected, seen))
            assert diff_files(pod, child) == (), way
            self.check_numbers(pod, child, [os.fsencode(path) for path in expected] if way == "small" else used or [])
        self.pods += children
        return way

    def check_numbers(self, pod, child, paths):
        """Files that the parent has written keep their inode numbers where that is promised."""
        before, after = pod.files.find_written(paths), child.files.find_written(paths)
        numbers = {(written.overlay, written.path): written.number for written in after}
        for written in before:
            if written.names == 1:
                assert numbers[written.overlay, written.path] == written.number, written

    def compare(self):
        one, other = self.random.choice(self.pods), self.random.choice(self.pods)
        tops = self.random.sample(self.tops(one), 3)
        before, after = self.describe(one, exactly=False), self.describe(other, exactly=False)
        expected = {}
        for path in before.keys() | after.keys():
            if before.get(path) != after.get(path) and any(path == top or path.startswith(f"{top}/") for top in tops):
                expected[path] = "added" if path not in before else "removed" if path not in after else "modified"
        assert {change.path: change.change for change in diff_files(one, other, tops)} == expected


def difference(one, other):
    return {
        path: (one.get(path), other.get(path)) for path in one.keys() | other.keys() if one.get(path) != other.get(path)
    }


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


async def live(world, seed, steps):
    zoo = Zoo(world, seed)
    zoo.pods.append(await world.pod())
    ways = []
    for _ in range(steps):
        pod = zoo.random.choice(zoo.pods)
        for _ in range(zoo.random.randrange(1, 15)):
            zoo.change(pod)
        what = zoo.random.random()
        if what < 0.5:
            ways.append(await zoo.fork(pod))
        elif what < 0.8:
            zoo.compare()
        while len(zoo.pods) > 6:
            await zoo.pods.pop(zoo.random.randrange(len(zoo.pods))).close()
    for pod in zoo.pods:
        await pod.close()
    return ways


async def test(world):
    await (await world.pod()).close()
    layers.MOST_LAYERS = 3  # so that chains are merged
    trees_before, descriptors_before = trees(world), open_descriptors()
    ways = []
    for seed in SEEDS:
        try:
            ways += await live(world, seed, STEPS)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
    await until(lambda: (trees(world), open_descriptors()) == (trees_before, descriptors_before))
    return ways

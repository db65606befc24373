"""Files in memory and shared memory of a process."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import multiprocessing
import os
from multiprocessing import shared_memory

from tests.fork.descriptors_registry import Check, libc, refused, thing


@thing
def a_sealed_file_in_memory_stays_sealed() -> Check:
    file = os.memfd_create("sealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(file, b"sealed memory")
    os.lseek(file, 2, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    plain = os.memfd_create("plain")

    def check() -> None:
        assert os.read(file, 4) == b"aled"
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == 14
        assert fcntl.fcntl(plain, fcntl.F_GET_SEALS) == 1
        refused(lambda: os.pwrite(file, b"x", 0), errno.EPERM)
        assert os.readlink(f"/proc/self/fd/{file}") == "/memfd:sealed (deleted)"

    return check


@thing
def a_mapping_and_its_file_in_memory_are_one() -> Check:
    file = os.memfd_create("mapped")
    os.ftruncate(file, 8192)
    memory = mmap.mmap(file, 8192)
    memory[:5] = b"first"
    reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)

    def check() -> None:
        assert memory[:5] == b"first"
        memory[4000:4005] = b"again"
        assert os.pread(file, 5, 4000) == os.pread(reader, 5, 4000) == b"again"
        assert os.fstat(file).st_size == 8192

    return check


@thing
def a_large_mapped_file_in_memory_needs_no_detour() -> Check:
    file = os.memfd_create("large")
    os.ftruncate(file, 3 << 20)
    memory = mmap.mmap(file, 3 << 20)
    memory[2 << 20 : (2 << 20) + 4] = b"here"

    def check() -> None:
        assert os.pread(file, 4, 2 << 20) == b"here"
        memory[0:3] = b"new"
        assert os.pread(file, 3, 0) == b"new"

    return check


@thing
def a_deleted_file_that_is_mapped_is_one_with_its_mapping() -> Check:
    files = []
    for name in ("mapped-gone", "/dev/shm/mapped-gone"):
        file = os.open(name, os.O_CREAT | os.O_RDWR)
        os.ftruncate(file, 10_000)
        memory = mmap.mmap(file, 10_000)
        memory[:4] = b"gone"
        os.unlink(name)
        files.append((file, memory))

    def check() -> None:
        for file, memory in files:
            assert (memory[:4], os.pread(file, 4, 0)) == (b"gone", b"gone")
            memory[:4] = b"here"
            assert os.pread(file, 4, 0) == b"here"

    return check


@thing
def anonymous_shared_memory_keeps_its_contents() -> Check:
    memory = mmap.mmap(-1, 20_000)
    memory[:4] = b"anon"
    memory[-4:] = b"last"
    hidden = mmap.mmap(-1, 4096)
    hidden[:4] = b"hide"
    address = ctypes.addressof(ctypes.c_char.from_buffer(hidden))
    assert not libc.mprotect(ctypes.c_void_p(address), 4096, 0)

    def check() -> None:
        assert (memory[:4], memory[-4:]) == (b"anon", b"last")
        child = os.fork()
        if not child:
            memory[:4] = b"kid!"
            os._exit(0)
        os.waitpid(child, 0)
        assert memory[:4] == b"kid!", "it is not shared with children any more"
        libc.mprotect(ctypes.c_void_p(address), 4096, 3)
        assert hidden[:4] == b"hide"

    return check


@thing
def a_block_of_shared_memory_is_the_file_in_dev_shm() -> Check:
    block = shared_memory.SharedMemory(create=True, size=5000)
    assert block.buf is not None
    block.buf[:5] = b"SHARE"

    def check() -> None:
        assert block.buf is not None
        assert bytes(block.buf[:5]) == b"SHARE"
        block.buf[:5] = b"again"
        with open(f"/dev/shm/{block.name}", "rb") as file:
            assert file.read(5) == b"again"
        same = shared_memory.SharedMemory(block.name)
        assert same.buf is not None
        same.buf[:5] = b"third"
        assert bytes(block.buf[:5]) == b"third"
        same.close()

    return check


@thing
def a_named_file_that_is_mapped_is_mapped_again() -> Check:
    with open("map\nped", "wb") as file:
        file.write(b"m" * 10_000)
    with open("map\nped", "r+b") as opened:
        memory = mmap.mmap(opened.fileno(), 0)
    memory[:3] = b"one"

    def check() -> None:
        assert memory[:4] == b"onem"
        memory[:3] = b"two"
        with open("map\nped", "rb") as again:
            assert again.read(4) == b"twom"

    return check


@thing
def multiprocessing_goes_on() -> Check:
    context = multiprocessing.get_context("fork")
    queue, simple, lock, value = context.Queue(), context.SimpleQueue(), context.Lock(), context.Value("i", 77)
    simple.put("simple")
    lock.acquire()

    def check() -> None:
        assert simple.get() == "simple"
        assert not lock.acquire(timeout=0.05)
        lock.release()
        assert lock.acquire(timeout=1)
        assert value.value == 77
        value.value = 78
        queue.put({"k": 1})
        assert queue.get(timeout=5) == {"k": 1}

    return check

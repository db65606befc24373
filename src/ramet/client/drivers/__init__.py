"""Everything in which the two faces of the SDK differ, written by hand twice with the same names.

``asynchronous`` and ``blocking`` carry out operations, on an event loop or in the caller's thread; ``async_bases`` and
``blocking_bases`` hold how a sandbox is created. ``tools/generate-sync`` makes ``client/blocking`` from
``client/asynchronous`` by putting one driver in place of the other.
"""

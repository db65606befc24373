"""The numbers that the engine, the guest and the C programs must agree on, each written once.

Constants only: this module imports nothing, so that the engine can read it without loading the guest, `setup.py` can
run it to generate `wire.h` (where each name has the prefix `WIRE_`), and a bare interpreter loads it in no time.
"""

# Both kinds of frame start alike: u32 length of the rest | u8 version | u8 kind | u32 length of the header.
FRAME_VERSION = 1

# Frames from the engine to the guest, over the control socket.
CONFIGURE = 1  # environment and working directory; answered with CONFIGURED
RUN = 2  # one cell; answered with DONE
THAWED = 3  # to a copy that cannot notice it, or that must draw other random numbers; answered with CONFIGURED
ASK_LOOPS = 4  # does a thread run an asyncio loop? Answered with LOOPS
ASK_NAMES = 5  # the names of the namespace; answered with NAMES
WAKE = 6  # to a copy without a cell yet: touch the memory that a cell will touch; no answer
TOOLS = 7  # the tools of the cells to come, and their socket; no answer
INTERRUPT = 8  # sent behind the RUN of a cell and before the signal, for a cell that has not begun yet; no answer
VALUE_GET = 9  # the value of a name; answered with VALUE, its first part
VALUE_NEXT = 10  # the next part of that value; answered with VALUE
VALUE_SET = 11  # give a name a value, which is in the frame or in a file; answered with VALUE
VALUE_DROP = 12  # the caller does not want the rest of the value; no answer
TAKEN = 13  # sent behind the RUN of a cell: the engine has taken the result with this number; no answer

VALUES_PACK = 14  # the values of several names, for another sandbox; answered with VALUE, as VALUE_GET
VALUES_UNPACK = 15  # make the values in a file that another sandbox has packed, aside; answered with VALUE
VALUES_KEEP = 16  # give their names the values that are aside; answered with VALUE

# Frames from the guest to the engine.
READY = 1  # the guest has booted; only templates send it
CONFIGURED = 2
RESULT = 3  # a rich result of the running cell
DONE = 4
LOOPS = 5
NAMES = 6
VALUE = 7

# Frames over the tool socket.
TOOL_CALL = 1  # from the sandbox
TOOL_ANSWER = 2  # from the engine: the value, its first part, or an error
TOOL_MORE = 3  # from the engine: the next part
TOOL_ARGUMENT_BYTES_AT_MOST = 16 * 1024 * 1024

# Values inside of frames.
VALUE_MARK = "$ramet"  # the key of a JSON object that stands for something JSON does not have
VALUE_DATA_BYTES_AT_MOST = 100 * 1024 * 1024
VALUE_JSON_BYTES_AT_MOST = 16 * 1024 * 1024
NAMES_AT_MOST = 10_000
SIZE_AT_MOST = 1 << 62  # of a value, in bytes

# The abstract name of the socket at which a sandbox asks for packages.
PACKAGES_SOCKET = "ramet-packages"
# How often pip tries again. A sandbox begins with this in its environment; its owner and its code may set another.
PIP_RETRIES = "1"

# The engine sends this signal to the REPL's main process only, for a cell that goes on after SIGINT. A real-time signal
# that the C library and the usual programs leave alone.
HARD_INTERRUPT_SIGNAL = 62

# Descriptors of the REPL. High numbers: code in a sandbox expects to get the low ones.
REPL_CONTROL = 1000  # the control socket
REPL_STDOUT = 1001  # the pipes behind 1 and 2, for when a cell has closed or redirected those
REPL_STDERR = 1002

# Descriptors of the engine's process.
ENGINE_PRIMARY = 3  # the socket to its owner
ENGINE_OWNER_PIDFD = 4
ENGINE_BROKER = 5  # the socket to the launcher
ENGINE_LISTENER = 6  # the socket at which it accepts connections, if there is one

# Descriptors of a pod's init, where a thaw fetches what it needs.
INIT_COMMAND = 3  # the socket to the engine
INIT_CONTROL = 4  # these three become REPL_CONTROL, REPL_STDOUT and REPL_STDERR
INIT_STDOUT = 5
INIT_STDERR = 6
INIT_CGROUPS = 7  # the first of the `tasks` files of the pod's cgroups

# The namespaces of a pod, in the order in which a thaw compares their inodes.
NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup", "pid")

# Addresses in a sandbox's memory where a freeze or a thaw lays out the calls that a task makes by itself: far from
# where programs and the kernel map anything. A sandbox with mappings of its own there cannot be forked.
SCRATCH_START = 0x1FA0_0000_0000
SCRATCH_END = 0x1FA2_0000_0000

# The longest packet between the engine and its helper program.
PACKET_BYTES_AT_MOST = 65536
# The helper program exits with this code when the host refused a step.
EXIT_NOT_CAPABLE = 71
# The niceness that sandboxes have at least, so that threads which spin do not delay the engine.
SANDBOX_NICENESS = 5
# NOROOT, NO_SETUID_FIXUP and KEEP_CAPS off, each locked (capabilities(7)): uid 0 of a pod gains nothing by exec.
SECURE_BITS = 0x2F

"""A short session: state that stays, output as it happens, faults survived, a deadline kept, forks, and the walls."""

import socket
import sys
import time

from ramet import Language, Sandbox


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def main() -> None:
    started = time.perf_counter()
    sandbox = Sandbox()
    print(f"engine started, template booted, first sandbox made in {time.perf_counter() - started:.2f} s")
    with sandbox:
        state_stays(sandbox)
        output_as_it_happens(sandbox)
        a_fault_is_a_result(sandbox)
        a_deadline_is_kept(sandbox)
        files_go_in_and_out(sandbox)
        forks(sandbox)
        walls(sandbox)
    heading("Another one, now that the template is there")
    started = time.perf_counter()
    with Sandbox() as second:
        answer = second.run_code("print(6 * 7)").stdout.strip()
        print(f"a new sandbox answered {answer} after {(time.perf_counter() - started) * 1e3:.1f} ms")
        print("it knows nothing of the first one:", second.run_code("monthly").stderr.strip().splitlines()[-1])


def state_stays(sandbox: Sandbox) -> None:
    heading("Cells share one namespace")
    with_pandas = sandbox.run_code("import pandas as pd").ok
    if with_pandas:
        sandbox.run_code("""
            df = pd.DataFrame({'month': [1, 1, 2], 'revenue': [10, 20, 5]})
        """)
        sandbox.run_code("monthly = df.groupby('month')['revenue'].sum()")
    else:
        sandbox.run_code("""
            sales = [(1, 10), (1, 20), (2, 5)]
            monthly = {}
        """)
        sandbox.run_code("for month, revenue in sales: monthly[month] = monthly.get(month, 0) + revenue")
    print(sandbox.run_code("print(monthly)").stdout, end="")
    print("the value of a last expression:", sandbox.run_code("int(monthly[1]) / 2").value)


def output_as_it_happens(sandbox: Sandbox) -> None:
    heading("Output arrives while the cell runs")
    code = "import time\nfor i in range(4):\n    print('step', i)\n    time.sleep(0.15)"
    started = time.perf_counter()
    for event in sandbox.run_code_stream(code):
        if event.type == "stdout":
            print(f"{time.perf_counter() - started:5.2f} s  {event.data}", end="")
        elif event.type == "exit":
            print(f"{time.perf_counter() - started:5.2f} s  exit code {event.code}")


def a_fault_is_a_result(sandbox: Sandbox) -> None:
    heading("An exception is a result, and the namespace stays")
    failed = sandbox.run_code("share = 1\nshare / 0")
    print(failed.stderr, end="")
    print(
        f"exit code {failed.exit_code}; then:", sandbox.run_code("print('still alive, share =', share)").stdout, end=""
    )

    heading("Even when the whole REPL dies")
    lost = sandbox.run_code("import os; os.kill(os.getpid(), 11)")
    print(f"exit code {lost.exit_code}, state {lost.state!r}, cause {lost.cause!r}")
    fresh = sandbox.run_code("print('a fresh REPL in the same sandbox')")
    print(fresh.stdout.strip(), f"(restarted={fresh.restarted})")


def a_deadline_is_kept(sandbox: Sandbox) -> None:
    heading("A cell that never ends meets its deadline")
    sandbox.run_code("kept = 'what earlier cells made'")
    late = sandbox.run_code("print('spinning', flush=True)\nwhile True: pass", timeout=0.5)
    print(f"printed {late.stdout.strip()!r}, cause {late.cause!r}, state {late.state!r}, {late.duration_seconds:.2f} s")
    print("still there:", sandbox.run_code("kept").value)


def files_go_in_and_out(sandbox: Sandbox) -> None:
    heading("Files, and a shell")
    sandbox.upload(b"one\ntwo\nthree\n", "/root/words.txt")
    print(sandbox.run_code("sort words.txt | tee sorted.txt | head -n 1", language="bash").stdout.strip())
    print(sandbox.download("/root/sorted.txt"))


def forks(sandbox: Sandbox) -> None:
    heading("Three plans tried from one state, the best one kept")
    sandbox.run_code("numbers = list(range(1_000_000)); result = 0")
    started = time.perf_counter()
    with sandbox.fork(3) as children:
        print(f"three copies of the live sandbox after {(time.perf_counter() - started) * 1e3:.1f} ms")
        plans = ["sum(numbers)", "max(numbers)", "len(numbers)"]
        results = {}
        for child, plan in zip(children, plans, strict=True):
            results[child] = int(child.run_code(f"result = {plan}; print(result)").stdout)
            print(f"  {plan:14} {results[child]:>16,}")
        sandbox.merge_into(max(children, key=results.__getitem__))
    print("the sandbox goes on as the winner: result =", sandbox.run_code("result").value)


def walls(sandbox: Sandbox) -> None:
    heading("What stands around it")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempts: list[tuple[str, Language, str]] = [
            ("read a home folder", "python", "open('/home/me/.ssh/id_ed25519')"),
            ("call the host", "python", f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"),
            ("mount something", "bash", "mount -t tmpfs none /mnt"),
            ("end every process", "bash", "kill -9 -1"),
        ]
        for what, language, code in attempts:
            tried = sandbox.run_code(code, language=language)
            # A traceback tells in its last line what came back, a shell command in its first.
            told = tried.stderr.strip().splitlines() or [f"exit code {tried.exit_code}"]
            print(f"  {what:20} {told[0 if language == 'bash' else -1]}")
    print("  and afterwards      ", sandbox.run_code("print('the sandbox answers')").stdout, end="")
    for name, value in sandbox.info().walls.items():
        print(f"  {name:20} {value}")


if __name__ == "__main__":
    main()

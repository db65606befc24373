"""Three children try three ways; the parent takes the best number and one report, and stays itself."""

from ramet import Sandbox

WAYS = {"mean": "sum(data) / len(data)", "middle": "sorted(data)[len(data) // 2]", "largest": "max(data)"}

with Sandbox() as parent:
    parent.run_code("data = [3, 1, 4, 1, 5, 9, 2, 6]; answer = None")
    with parent.fork(len(WAYS)) as children:
        for child, (name, way) in zip(children, WAYS.items(), strict=True):
            child.run_code(f"answer = {way}; _ = open('{name}.txt', 'w').write(f'{name}: {{answer}}\\n')")
        parent.take(children[2], names=["answer"])
        for child in children:
            parent.take(child, files=["*.txt"])
    print(parent.run_code("answer").value)
    print(parent.run_code("ls *.txt; cat *.txt", language="bash").stdout)

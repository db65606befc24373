"""Ratios against what else one could use, measured in one run: `python -m bench`.

Start reading at scenarios.py and fork_scenarios.py. Each baseline has a file of its own; ours.py and forks.py are Ramet
through its public face.
"""

"""Ratios against what else one could use, measured in one run: `python -m bench`.

Start reading at scenarios.py. Each baseline has a file of its own; ours.py is Ramet through its public face.
"""

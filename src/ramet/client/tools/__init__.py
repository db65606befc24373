"""Tools: functions of the owner's program that code in a sandbox can call. Their schemas, and how calls are answered.

Used by both faces of a sandbox. Start with ``tool.py``, then ``call_runner.py`` and ``call_reader.py``.
"""

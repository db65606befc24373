"""Tools as they travel: what a sandbox is given, frames of calls, values, records. No I/O."""

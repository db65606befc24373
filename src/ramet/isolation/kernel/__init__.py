"""What we ask of the kernel directly: system calls, control groups, the seccomp policy, packet rules, terminals."""

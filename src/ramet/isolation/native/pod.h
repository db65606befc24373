#ifndef RAMET_POD_H
#define RAMET_POD_H
/* Forks a builder that makes one pod and answers on `channel`:
 *   "pod ID PID"  + pidfd of the pod's init + the pod's root (O_PATH)      or      "error ID ..."
 * Lines of `text`: "id N", "boot 0|1", "given N" (how many descriptors go to the init), "upper BYTES INODES", "shm BYTES",
 * "name HOSTNAME", "skeleton TREE", "bind TREE /path", "overlay TREE /path", "mount /path" (next descriptor after the given ones). */
void make_pod(int channel, char *text, const int *descriptors, int count);
#endif

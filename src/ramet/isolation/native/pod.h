#ifndef RAMET_POD_H
#define RAMET_POD_H
/* Forks a builder that makes one pod and answers on `channel`:
 *   "pod ID PID"  + pidfd of the pod's init + the pod's root, its writable layer and its /dev/shm (O_PATH)   or   "error ID ..."
 * Lines of `text`: "id N", "boot 0|1", "given N" (how many descriptors go to the init), "upper BYTES INODES", "shm BYTES",
 * "name HOSTNAME", "skeleton TREE", "bind TREE /path", "overlay TREE /path", "layer TREE" (sealed, topmost first: its folder "root"
 * lies over the skeleton, its folder "treeN" over the overlay in place N), and those that take the next descriptor after the given
 * ones, in this order: "image files" (folders "root" and "treeN", copied into the writable layer), "image shm" (copied into
 * /dev/shm), "mount /path". */
void make_pod(int channel, char *text, const int *descriptors, int count);
#endif

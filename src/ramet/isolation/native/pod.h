#ifndef RAMET_POD_H
#define RAMET_POD_H
/* 0, or why the kernel does not show the folder at `path` through an overlay (an errno): a file system that cannot be under one,
 * or mounts below it that are locked because they come from a more privileged namespace. */
int refuses_overlay(const char *path);
/* Forks a builder that makes one pod and answers on `channel`:
 *   "pod ID PID"  + pidfd of the pod's init + the pod's root, its writable layer and its /dev/shm (O_PATH)   or   "error ID ..."
 * Lines of `text`: "id N", "boot 0|1", "given N" (how many descriptors go to the init), "upper BYTES INODES", "shm BYTES", "memory BYTES",
 * "name HOSTNAME", "skeleton TREE", "bind TREE /path" (as it is), "show TREE /path" (read-only, through an overlay of the pod's own),
 * "overlay TREE /path" (the same, writable), "layer TREE" (sealed, topmost first: its folder "root" lies over the skeleton, its folder
 * "treeN" over the overlay in place N), and those that take the next descriptor after the given ones, in this order: "image files"
 * (folders "root" and "treeN", copied into the writable layer), "image shm" (copied into /dev/shm), and in the order of their lines
 * "mount /path" (as it is) and "show-mount /path" (read-only, through an overlay of the pod's own). */
void make_pod(int channel, char *text, const int *descriptors, int count);
#endif

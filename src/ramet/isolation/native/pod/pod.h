#ifndef RAMET_POD_H
#define RAMET_POD_H
/* Returns 0, or the errno with which the kernel refuses to show the folder at `path` through an
 * overlay: its file system cannot be under one, or mounts below it are locked because they come
 * from a more privileged namespace. */
int refuses_overlay(const char *path);
/* Forks a builder that makes one pod and answers on `channel`:
 *
 *   "pod ID PID"     with the pidfd of the pod's init, and O_PATH descriptors of the pod's root,
 * its writable layer and its /dev/shm "error ID ..."
 *
 * Lines of `text`:
 *
 *   id N
 *   boot 0|1
 *   given N               how many descriptors go to the init
 *   upper BYTES INODES    size of the writable layer
 *   shm BYTES
 *   memory BYTES
 *   name HOSTNAME
 *   skeleton TREE
 *   bind TREE /path       shows the tree as it is
 *   show TREE /path       read-only, through an overlay of the pod's own
 *   overlay TREE /path    the same, writable
 *   layer TREE            sealed, topmost first: its folder "root" lies over the skeleton, its
 * folder "treeN" over the overlay in place N
 *
 * and lines that take the next descriptor after the given ones, in this order:
 *
 *   image files           folders "root" and "treeN", copied into the writable layer
 *   image shm             copied into /dev/shm
 *   mount /path           shows the mount as it is         (these two in
 *   show-mount /path      read-only, through an overlay     the order of their lines)
 */
void make_pod(int channel, char *text, const int *descriptors, int count);
#endif

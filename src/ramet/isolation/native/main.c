/* ramet-pod: the small program behind the walls. It is started by Ramet, never by hand. */
#include "common.h"

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "launch")) return launch_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "holder")) return holder_start(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "holder-main")) return holder_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "spawn")) return spawn_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "enter")) return enter_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "blank")) return blank_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "fill")) return fill_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "pages")) return pages_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "verify-pages")) return verify_pages_main(argc - 2, argv + 2);
    if (argc >= 2 && !strcmp(argv[1], "hash-pages")) return hash_pages_main(argc - 2, argv + 2);
    if (argc == 2 && !strcmp(argv[1], "probe")) return probe_main();
    if (argc > 2 && !strcmp(argv[1], "network")) return network_main(argv + 2);
    dprintf(2, "ramet-pod is started by Ramet itself; there is nothing to run by hand. "
               "Try: ramet doctor\n");
    return 2;
}

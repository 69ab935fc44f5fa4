/* Which process registered itself by a file: the one that the file's name numbers, or else the one that holds a POSIX
 * lock on the file. A process in a container does not know its number on the node, and the kernel names the holder of
 * a lock as the asker counts (fcntl(2), F_GETLK; Linux, fs/locks.c, locks_translate_pid).
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* 0 where the file is of no process. */
static unsigned registered_pid(const char *path, const char *name)
{
    char *end;
    unsigned pid = (unsigned)strtoul(name, &end, 10);
    if (isdigit((unsigned char)name[0]) && *end == '\0')
        return pid;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    int held = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0;
    close(file);
    return held ? (unsigned)lock.l_pid : 0;
}

/* What the scripted libraries of vendors have in common: a control file that is read again whenever it was replaced,
 * rules for calls in it, and files beside it. Included once, by a stub that defines before
 *
 *   STUB           its name, for messages: "efml"
 *   ENVIRONMENT    the variable that names the control file: "XPU_EFML_STUB"
 *
 * and after it reset_script, parse_line and complete_script, as declared below. Lines that are understood here, where
 * SYMBOL is the name of a call as the stub says it, and one that ends with * means all calls on a card that begin so:
 *
 *   fail SYMBOL CODE ERRNO [I]  the call answers CODE, with this errno (only for the card in slot I)
 *   hang SYMBOL                 the call does not return while the line is there
 *   segv SYMBOL                 the call kills the process
 *   latency SYMBOL USEC         the call takes so long
 *   kill SEQ SYMBOL before|after    the call kills the process before or after it took effect, once: whoever kills
 *                               leaves the file <control file>.killed.SEQ
 *   trace                       every call appends its name to <control file>.trace
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { RULES = 256, NOBODY = -1, PATH_ROOM = 4200 };
enum Kind { FAIL, HANG, SEGV, LATENCY, KILL_BEFORE, KILL_AFTER };
typedef struct { enum Kind kind; char symbol[64]; long value; int error, slot; } Rule;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { int rule_count, trace; Rule rules[RULES]; } rules;
static struct stat seen;
static int loaded;
static char control[4001];
/* How often another control file was named: what was made under an earlier one is over. */
static unsigned long long look;

/* Everything as it is without a script. */
static void reset_script(void);
/* Whether the line was understood. */
static int parse_line(const char *line);
/* After the last line. */
static void complete_script(void);

/* Called with the mutex held, by init alone: threads that wait must not read the environment while others write it. */
static void name_control(void)
{
    const char *path = getenv(ENVIRONMENT);
    path = path == NULL ? "/nonexistent" : path;
    if (strcmp(control, path) == 0)
        return;
    snprintf(control, sizeof control, "%s", path);
    loaded = 0;
    look++;
}

static const char *path_with(const char *suffix, char out[PATH_ROOM])
{
    snprintf(out, PATH_ROOM, "%s%.100s", control, suffix);
    return out;
}

static void add_rule(enum Kind kind, const char *symbol, long value, int error, int slot)
{
    if (rules.rule_count == RULES) {
        fprintf(stderr, STUB " stub: more than %d rules\n", RULES);
        return;
    }
    Rule *rule = &rules.rules[rules.rule_count++];
    *rule = (Rule){.kind = kind, .value = value, .error = error, .slot = slot};
    snprintf(rule->symbol, sizeof rule->symbol, "%s", symbol);
}

static int parse_rule(const char *line)
{
    char symbol[64], when[8];
    int error, slot = NOBODY;
    long value;
    if (sscanf(line, "fail %63s %ld %d %d", symbol, &value, &error, &slot) >= 3)
        add_rule(FAIL, symbol, value, error, slot);
    else if (sscanf(line, "latency %63s %ld", symbol, &value) == 2)
        add_rule(LATENCY, symbol, value, 0, NOBODY);
    else if (sscanf(line, "hang %63s", symbol) == 1)
        add_rule(HANG, symbol, 0, 0, NOBODY);
    else if (sscanf(line, "segv %63s", symbol) == 1)
        add_rule(SEGV, symbol, 0, 0, NOBODY);
    else if (sscanf(line, "kill %ld %63s %7s", &value, symbol, when) == 3)
        add_rule(strcmp(when, "before") == 0 ? KILL_BEFORE : KILL_AFTER, symbol, value, 0, NOBODY);
    else if (strcmp(line, "trace\n") == 0)
        rules.trace = 1;
    else
        return 0;
    return 1;
}

/* Numbers of slots after a verb, as many as there are; where the verb is another one, nothing. */
static int parse_slots(const char *line, const char *verb, unsigned *slots, unsigned most)
{
    unsigned slot, place = 0;
    int length;
    if (strncmp(line, verb, strlen(verb)) != 0)
        return 0;
    for (line += strlen(verb); place < most && sscanf(line, " %u%n", &slot, &length) == 1 && slot < most; line += length)
        slots[place++] = slot;
    return 1;
}

static void read_script(FILE *file)
{
    char line[512];
    memset(&rules, 0, sizeof rules);
    reset_script();
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (!parse_rule(line) && !parse_line(line) && line[0] != '\n' && line[0] != '#')
            fprintf(stderr, STUB " stub: line not understood: %s", line);
    complete_script();
    loaded = 1;
}

/* Called with the mutex held. A file that is missing leaves what was read before. */
static void refresh(void)
{
    struct stat now;
    if (control[0] == 0)
        name_control();
    if (stat(control, &now) != 0) {
        if (!loaded)
            read_script(NULL);
        return;
    }
    if (loaded && now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(control, "re");
    if (file == NULL)
        return;
    fstat(fileno(file), &seen);
    read_script(file);
    fclose(file);
}

static void trace(const char *symbol)
{
    char path[PATH_ROOM], line[80];
    int file = open(path_with(".trace", path), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%.70s\n", symbol);
    if (write(file, line, (size_t)length) < 0)
        perror(STUB " stub: trace");
    close(file);
}

static int is_named(const Rule *rule, const char *symbol, int slot)
{
    size_t length = strlen(rule->symbol);
    if (slot != NOBODY && length && rule->symbol[length - 1] == '*')
        return strncmp(rule->symbol, symbol, length - 1) == 0;
    return strcmp(rule->symbol, symbol) == 0;
}

static const Rule *find_rule(enum Kind kind, const char *symbol, int slot)
{
    for (int i = 0; i < rules.rule_count; i++) {
        const Rule *rule = &rules.rules[i];
        if (rule->kind == kind && is_named(rule, symbol, slot) && (rule->slot < 0 || rule->slot == slot))
            return rule;
    }
    return NULL;
}

/* Of those that come here at once, the one that leaves the file dies. */
static void die_once(enum Kind kind, const char *symbol)
{
    char path[PATH_ROOM], suffix[64];
    for (int i = 0; i < rules.rule_count; i++) {
        const Rule *rule = &rules.rules[i];
        if (rule->kind != kind || strcmp(rule->symbol, symbol) != 0)
            continue;
        snprintf(suffix, sizeof suffix, ".killed.%ld", rule->value);
        int file = open(path_with(suffix, path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file >= 0)
            raise(SIGKILL);
    }
}

/* What the script has the call do before it answers, and the rule by which it fails, if one is there. Called with the
 * mutex held, which is free while the call hangs, so that other threads go on. */
static const Rule *scripted(const char *symbol, int slot)
{
    refresh();
    if (rules.trace)
        trace(symbol);
    if (find_rule(SEGV, symbol, slot) != NULL)
        raise(SIGSEGV);
    die_once(KILL_BEFORE, symbol);
    const Rule *slow = find_rule(LATENCY, symbol, slot);
    if (slow != NULL) {
        useconds_t usec = (useconds_t)slow->value;
        pthread_mutex_unlock(&mutex);
        usleep(usec);
        pthread_mutex_lock(&mutex);
    }
    while (find_rule(HANG, symbol, slot) != NULL) {
        pthread_mutex_unlock(&mutex);
        usleep(1000);
        pthread_mutex_lock(&mutex);
        refresh();
    }
    return find_rule(FAIL, symbol, slot);
}

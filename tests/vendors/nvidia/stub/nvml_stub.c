/* A libnvidia-ml.so.1 for machines without NVIDIA hardware: NVML's ABI, scripted through a text file.
 *
 * The environment variable XPU_NVML_STUB names the control file; it is read again whenever it was replaced.
 * One instruction per line; a card is named by its slot, which never changes:
 *
 *   cards N                     slots 0..N-1 hold a card (at most 64; 8 without this line)
 *   remove I                    slot I is empty: indices of later cards move down
 *   lost I                      the card is still counted, every call on it answers GPU_IS_LOST
 *   minor I M                   the card has minor number M
 *   recovery I ACTION           what field 230 says of the card
 *   norecovery                  a driver that does not know field 230
 *   eventtypes MASK             what the driver can report (hexadecimal)
 *   nonvlink                    cards without NVLink
 *   event SEQ I TYPE DATA       an event, once for every event set made before the line came
 *   fail SYMBOL CODE [I]        the call answers CODE (only for the card in slot I)
 *   hang SYMBOL                 the call does not return while the line is there
 *   segv SYMBOL                 the call kills the process
 *   latency SYMBOL USEC         the call takes so long
 *   trace                       every call appends its name to <control file>.trace
 *
 * The hardware is that of the recordings in ../recorded_allocations.json.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { SLOTS = 64, RULES = 64, EVENTS = 1024, LANES = 18 };
enum { FI_RECOVERY_ACTION = 230, VALUE_UNSIGNED_INT = 1 };

typedef int Ret;
typedef unsigned int u32;
typedef unsigned long long u64;

typedef struct { u32 slot; } Gpu;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { Gpu *device; u64 type, data; u32 gi, ci; } EventData;
typedef struct { u32 field, scope; int64_t timestamp, latency; u32 type; int ret;
                 union { double d; u32 ui; u64 ull; int64_t ll; } value; } FieldValue;
typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u32 pid; u64 memory; u32 gi, ci; } ProcessInfo;
typedef struct { u32 pid; u64 time; u32 sm, mem, enc, dec; } ProcessSample;
typedef struct { u32 counts[8]; u64 memory_mb; } Attributes;

_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(ProcessInfo) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(ProcessSample) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(Attributes) == 40, "nvmlDeviceAttributes_t");

enum Kind { FAIL, HANG, SEGV, LATENCY };
typedef struct { enum Kind kind; char symbol[64]; long value; int slot; } Rule;
typedef struct { u64 seq, type, data; u32 slot; } Event;

static struct {
    u32 cards, minor[SLOTS], recovery[SLOTS];
    int removed[SLOTS], lost[SLOTS];
    int no_recovery, no_nvlink, trace;
    u64 event_types;
    Rule rules[RULES];
    int rule_count;
    Event events[EVENTS];
    int event_count;
} script;

typedef struct { int used, news; u64 taken, floor[SLOTS], mask[SLOTS]; } EventSet;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static int loaded;
static int sessions;
static Gpu gpus[SLOTS];
static EventSet sets[16];

/* ---- the control file ---- */

static const char *control_path(void)
{
    return getenv("XPU_NVML_STUB");
}

static void reset_script(void)
{
    memset(&script, 0, sizeof script);
    script.cards = 8;
    script.event_types = 0xC00F;
    for (u32 i = 0; i < SLOTS; i++) {
        gpus[i].slot = i;
        script.minor[i] = i;
    }
}

static void add_rule(enum Kind kind, const char *symbol, long value, int slot)
{
    if (script.rule_count == RULES)
        return;
    Rule *rule = &script.rules[script.rule_count++];
    rule->kind = kind;
    rule->value = value;
    rule->slot = slot;
    snprintf(rule->symbol, sizeof rule->symbol, "%s", symbol);
}

static void parse_line(const char *line)
{
    char symbol[64];
    u32 slot, number;
    int only = -1;
    long value;
    Event event;
    if (sscanf(line, "cards %u", &number) == 1)
        script.cards = number <= SLOTS ? number : SLOTS;
    else if (sscanf(line, "remove %u", &slot) == 1 && slot < SLOTS)
        script.removed[slot] = 1;
    else if (sscanf(line, "lost %u", &slot) == 1 && slot < SLOTS)
        script.lost[slot] = 1;
    else if (sscanf(line, "minor %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.minor[slot] = number;
    else if (sscanf(line, "recovery %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.recovery[slot] = number;
    else if (strcmp(line, "norecovery\n") == 0)
        script.no_recovery = 1;
    else if (strcmp(line, "nonvlink\n") == 0)
        script.no_nvlink = 1;
    else if (strcmp(line, "trace\n") == 0)
        script.trace = 1;
    else if (sscanf(line, "eventtypes %llx", &event.type) == 1)
        script.event_types = event.type;
    else if (sscanf(line, "event %llu %u %llx %llu", &event.seq, &event.slot, &event.type, &event.data) == 4) {
        if (event.slot < SLOTS && script.event_count < EVENTS)
            script.events[script.event_count++] = event;
    } else if (sscanf(line, "fail %63s %ld %d", symbol, &value, &only) >= 2)
        add_rule(FAIL, symbol, value, only);
    else if (sscanf(line, "latency %63s %ld", symbol, &value) == 2)
        add_rule(LATENCY, symbol, value, -1);
    else if (sscanf(line, "hang %63s", symbol) == 1)
        add_rule(HANG, symbol, 0, -1);
    else if (sscanf(line, "segv %63s", symbol) == 1)
        add_rule(SEGV, symbol, 0, -1);
    else if (line[0] != '\n' && line[0] != '#')
        fprintf(stderr, "nvml stub: line not understood: %s", line);
}

/* Called with the mutex held. A file that is missing leaves what was read before. */
static void refresh(void)
{
    const char *path = control_path();
    struct stat now;
    if (!loaded)
        reset_script();
    if (path == NULL || stat(path, &now) != 0) {
        loaded = 1;
        return;
    }
    if (loaded && now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    char line[256];
    reset_script();
    fstat(fileno(file), &seen);
    while (fgets(line, sizeof line, file) != NULL)
        parse_line(line);
    fclose(file);
    loaded = 1;
}

static void trace(const char *symbol)
{
    char line[4096 + 8];
    const char *path = control_path();
    if (path == NULL)
        return;
    snprintf(line, sizeof line, "%.4000s.trace", path);
    int file = open(line, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%s\n", symbol);
    if (write(file, line, (size_t)length) < 0)
        perror("nvml stub: trace");
    close(file);
}

static const Rule *find_rule(enum Kind kind, const char *symbol, int slot)
{
    for (int i = 0; i < script.rule_count; i++) {
        const Rule *rule = &script.rules[i];
        if (rule->kind == kind && strcmp(rule->symbol, symbol) == 0 && (rule->slot < 0 || rule->slot == slot))
            return rule;
    }
    return NULL;
}

static int is_present(u32 slot)
{
    return slot < script.cards && !script.removed[slot];
}

/* Called with the mutex held; the mutex is free while the call hangs, so that other threads go on. */
static Ret scripted(const char *symbol, int slot)
{
    refresh();
    if (script.trace)
        trace(symbol);
    if (find_rule(SEGV, symbol, slot) != NULL)
        raise(SIGSEGV);
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
    const Rule *fail = find_rule(FAIL, symbol, slot);
    return fail == NULL ? SUCCESS : (Ret)fail->value;
}

static Ret enter(const char *symbol)
{
    pthread_mutex_lock(&mutex);
    Ret ret = scripted(symbol, -1);
    if (ret == SUCCESS && sessions == 0)
        ret = UNINITIALIZED;
    return ret;
}

static Ret enter_device(const char *symbol, const Gpu *gpu)
{
    pthread_mutex_lock(&mutex);
    if (gpu < gpus || gpu >= gpus + SLOTS)
        return INVALID_ARGUMENT;
    Ret ret = scripted(symbol, (int)gpu->slot);
    if (ret != SUCCESS)
        return ret;
    if (sessions == 0)
        return UNINITIALIZED;
    if (!is_present(gpu->slot))
        return INVALID_ARGUMENT;
    return script.lost[gpu->slot] ? GPU_IS_LOST : SUCCESS;
}

static Ret leave(Ret ret)
{
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* The mutex is held from here to LEAVE. */
#define ENTER() do { Ret entered = enter(__func__); if (entered != SUCCESS) return leave(entered); } while (0)
#define ENTER_DEVICE(gpu) \
    do { Ret entered = enter_device(__func__, gpu); if (entered != SUCCESS) return leave(entered); } while (0)
#define LEAVE(ret) return leave(ret)

static Ret put_text(char *out, u32 size, const char *text)
{
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

static void uuid_of(u32 slot, char out[48])
{
    snprintf(out, 48, "GPU-00000000-0000-0000-0000-%012u", slot);
}

static void pci_of(u32 slot, PciInfo *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10 + slot;
    pci->id = 0x233010de;
    pci->subsystem = 0x16c110de;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
}

/* ---- library and system ---- */

static Ret init(const char *symbol)
{
    pthread_mutex_lock(&mutex);
    Ret ret = scripted(symbol, -1);
    if (ret == SUCCESS)
        sessions++;
    return leave(ret);
}

API Ret nvmlInit_v2(void) { return init(__func__); }
API Ret nvmlInitWithFlags(u32 flags) { (void)flags; return init(__func__); }

API Ret nvmlShutdown(void)
{
    ENTER();
    sessions--;
    LEAVE(SUCCESS);
}

API const char *nvmlErrorString(Ret ret)
{
    switch (ret) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    case UNKNOWN: return "Unknown Error";
    default: return "Error of the stub";
    }
}

API Ret nvmlSystemGetDriverVersion(char *out, u32 size) { ENTER(); LEAVE(put_text(out, size, "580.65.06")); }
API Ret nvmlSystemGetNVMLVersion(char *out, u32 size) { ENTER(); LEAVE(put_text(out, size, "13.580.65.06")); }
API Ret nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(); *out = 13000; LEAVE(SUCCESS); }
API Ret nvmlSystemGetCudaDriverVersion(int *out) { ENTER(); *out = 13000; LEAVE(SUCCESS); }

/* ---- cards ---- */

API Ret nvmlDeviceGetCount_v2(u32 *out)
{
    ENTER();
    *out = 0;
    for (u32 slot = 0; slot < SLOTS; slot++)
        *out += (u32)is_present(slot);
    LEAVE(SUCCESS);
}

/* Called with the mutex held, once the card is found: the rest of a look-up by any name. */
static Ret handle_of(const char *symbol, u32 slot, Gpu **out)
{
    const Rule *fail = find_rule(FAIL, symbol, (int)slot);
    if (fail != NULL)
        return (Ret)fail->value;
    if (script.lost[slot])
        return GPU_IS_LOST;
    *out = &gpus[slot];
    return SUCCESS;
}

API Ret nvmlDeviceGetHandleByIndex_v2(u32 index, Gpu **out)
{
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++)
        if (is_present(slot) && index-- == 0)
            LEAVE(handle_of(__func__, slot, out));
    LEAVE(INVALID_ARGUMENT);
}

API Ret nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **out)
{
    char mine[48];
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++) {
        uuid_of(slot, mine);
        if (is_present(slot) && strcmp(uuid, mine) == 0)
            LEAVE(handle_of(__func__, slot, out));
    }
    LEAVE(NOT_FOUND);
}

API Ret nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Gpu **out)
{
    PciInfo pci;
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++) {
        pci_of(slot, &pci);
        if (is_present(slot) && (strcasecmp(bus_id, pci.bus_id) == 0 || strcasecmp(bus_id, pci.legacy) == 0))
            LEAVE(handle_of(__func__, slot, out));
    }
    LEAVE(NOT_FOUND);
}

API Ret nvmlDeviceGetIndex(Gpu *gpu, u32 *out)
{
    ENTER_DEVICE(gpu);
    *out = 0;
    for (u32 slot = 0; slot < gpu->slot; slot++)
        *out += (u32)is_present(slot);
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetUUID(Gpu *gpu, char *out, u32 size)
{
    char uuid[48];
    ENTER_DEVICE(gpu);
    uuid_of(gpu->slot, uuid);
    LEAVE(put_text(out, size, uuid));
}

API Ret nvmlDeviceGetName(Gpu *gpu, char *out, u32 size)
{
    ENTER_DEVICE(gpu);
    LEAVE(put_text(out, size, "NVIDIA H100 80GB HBM3"));
}

API Ret nvmlDeviceGetMinorNumber(Gpu *gpu, u32 *out)
{
    ENTER_DEVICE(gpu);
    *out = script.minor[gpu->slot];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *out)
{
    ENTER_DEVICE(gpu);
    pci_of(gpu->slot, out);
    LEAVE(SUCCESS);
}

static const u64 TOTAL_MEMORY = 85520809984ULL;

API Ret nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *out)
{
    ENTER_DEVICE(gpu);
    *out = (Memory){.total = TOTAL_MEMORY, .free = TOTAL_MEMORY, .used = 0};
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *out)
{
    ENTER_DEVICE(gpu);
    if (out->version != (sizeof *out | 2u << 24))
        LEAVE(VERSION_MISMATCH);
    *out = (MemoryV2){.version = out->version, .total = TOTAL_MEMORY, .free = TOTAL_MEMORY};
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor)
{
    ENTER_DEVICE(gpu);
    *major = 9;
    *minor = 0;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetArchitecture(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 9; LEAVE(SUCCESS); }
API Ret nvmlDeviceGetBrand(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 2; LEAVE(SUCCESS); }
API Ret nvmlDeviceGetPersistenceMode(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 1; LEAVE(SUCCESS); }

API Ret nvmlDeviceGetNumaNodeId(Gpu *gpu, u32 *out)
{
    ENTER_DEVICE(gpu);
    (void)out;
    LEAVE(NOT_SUPPORTED);
}

API Ret nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *out)
{
    ENTER_DEVICE(gpu);
    *out = (Utilization){0, 0};
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, u32 *count, ProcessInfo *out)
{
    ENTER_DEVICE(gpu);
    (void)out;
    *count = 0;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetProcessUtilization(Gpu *gpu, ProcessSample *out, u32 *count, u64 since)
{
    ENTER_DEVICE(gpu);
    (void)out;
    (void)since;
    *count = 0;
    LEAVE(NOT_FOUND);
}

API Ret nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values)
{
    ENTER_DEVICE(gpu);
    for (int i = 0; i < count; i++) {
        values[i].ret = INVALID_ARGUMENT;
        if (values[i].field != FI_RECOVERY_ACTION || script.no_recovery)
            continue;
        values[i].ret = SUCCESS;
        values[i].type = VALUE_UNSIGNED_INT;
        values[i].value.ui = script.recovery[gpu->slot];
    }
    LEAVE(SUCCESS);
}

/* ---- how cards reach each other ---- */

API Ret nvmlDeviceGetTopologyCommonAncestor(Gpu *gpu, Gpu *other, int *out)
{
    ENTER_DEVICE(gpu);
    if (other < gpus || other >= gpus + SLOTS || !is_present(other->slot))
        LEAVE(INVALID_ARGUMENT);
    if (script.lost[other->slot])
        LEAVE(GPU_IS_LOST);
    u32 a = gpu->slot, b = other->slot;
    *out = a / 2 == b / 2 ? 10 : a / 4 == b / 4 ? 40 : 50;
    LEAVE(SUCCESS);
}

static Ret nvlink(const Gpu *gpu, u32 link, u32 *peer)
{
    if (script.no_nvlink)
        return NOT_SUPPORTED;
    if (link >= LANES)
        return INVALID_ARGUMENT;
    *peer = gpu->slot ^ 1;
    return SUCCESS;
}

API Ret nvmlDeviceGetNvLinkState(Gpu *gpu, u32 link, u32 *out)
{
    u32 peer = 0;
    ENTER_DEVICE(gpu);
    Ret ret = nvlink(gpu, link, &peer);
    *out = ret == SUCCESS && is_present(peer) && !script.lost[peer];
    LEAVE(ret);
}

API Ret nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, u32 link, PciInfo *out)
{
    u32 peer = 0;
    ENTER_DEVICE(gpu);
    Ret ret = nvlink(gpu, link, &peer);
    pci_of(peer, out);
    LEAVE(ret);
}

API Ret nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, u32 link, u32 *out)
{
    u32 peer = 0;
    ENTER_DEVICE(gpu);
    *out = 0;
    LEAVE(nvlink(gpu, link, &peer));
}

/* ---- events ---- */

static int in_sets(const EventSet *set)
{
    return set >= sets && set < sets + sizeof sets / sizeof *sets && set->used;
}

static u64 newest_event(void)
{
    u64 newest = 0;
    for (int i = 0; i < script.event_count; i++)
        if (script.events[i].seq > newest)
            newest = script.events[i].seq;
    return newest;
}

/* News of the control file comes through inotify, so that an idle wait costs nothing. */
static int watch_control(void)
{
    char directory[4096];
    const char *path = control_path();
    if (path == NULL)
        return -1;
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash == NULL)
        strcpy(directory, ".");
    else
        *slash = '\0';
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0)
        inotify_add_watch(fd, directory, IN_MOVED_TO | IN_CLOSE_WRITE);
    return fd;
}

API Ret nvmlEventSetCreate(EventSet **out)
{
    ENTER();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (sets[i].used)
            continue;
        sets[i] = (EventSet){.used = 1, .news = watch_control(), .taken = newest_event()};
        *out = &sets[i];
        LEAVE(SUCCESS);
    }
    LEAVE(UNKNOWN);
}

API Ret nvmlEventSetFree(EventSet *set)
{
    ENTER();
    if (!in_sets(set))
        LEAVE(INVALID_ARGUMENT);
    if (set->news >= 0)
        close(set->news);
    set->used = 0;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetSupportedEventTypes(Gpu *gpu, u64 *out)
{
    ENTER_DEVICE(gpu);
    *out = script.event_types;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceRegisterEvents(Gpu *gpu, u64 types, EventSet *set)
{
    ENTER_DEVICE(gpu);
    if (!in_sets(set))
        LEAVE(INVALID_ARGUMENT);
    if (types & ~script.event_types)
        LEAVE(NOT_SUPPORTED);
    set->mask[gpu->slot] |= types;
    set->floor[gpu->slot] = newest_event();
    LEAVE(SUCCESS);
}

/* An event of an empty slot always comes: a driver that names a card which nobody registered. */
static int wants(const EventSet *set, const Event *event)
{
    if (event->seq <= set->taken)
        return 0;
    if (!is_present(event->slot))
        return 1;
    return event->seq > set->floor[event->slot] && (event->type & set->mask[event->slot]) != 0;
}

static int take_event(EventSet *set, EventData *out)
{
    for (int i = 0; i < script.event_count; i++) {
        const Event *event = &script.events[i];
        if (!wants(set, event))
            continue;
        set->taken = event->seq;
        *out = (EventData){&gpus[event->slot], event->type, event->data, 0xFFFFFFFF, 0xFFFFFFFF};
        return 1;
    }
    return 0;
}

static int watches_lost_card(const EventSet *set)
{
    for (u32 slot = 0; slot < SLOTS; slot++)
        if (set->mask[slot] && script.lost[slot] && is_present(slot))
            return 1;
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Called without the mutex. */
static void await_control(int news, int64_t wait_ms)
{
    char buffer[4096];
    struct pollfd watched = {.fd = news, .events = POLLIN, .revents = 0};
    if (poll(&watched, 1, (int)wait_ms) > 0)
        while (read(news, buffer, sizeof buffer) > 0)
            ;
}

API Ret nvmlEventSetWait_v2(EventSet *set, EventData *out, u32 timeout_ms)
{
    int64_t deadline = now_ms() + timeout_ms;
    ENTER();
    while (in_sets(set)) {
        refresh();
        const Rule *fail = find_rule(FAIL, __func__, -1);
        if (fail != NULL)
            LEAVE((Ret)fail->value);
        if (take_event(set, out))
            LEAVE(SUCCESS);
        if (watches_lost_card(set))
            LEAVE(GPU_IS_LOST);
        int64_t left = deadline - now_ms();
        if (left <= 0)
            LEAVE(TIMEOUT);
        int news = set->news;
        pthread_mutex_unlock(&mutex);
        await_control(news, left);
        pthread_mutex_lock(&mutex);
    }
    LEAVE(INVALID_ARGUMENT);
}

/* ---- MIG: a node where it is not in use ---- */

API Ret nvmlDeviceGetMigMode(Gpu *gpu, u32 *now, u32 *next)
{
    ENTER_DEVICE(gpu);
    (void)now;
    (void)next;
    LEAVE(NOT_SUPPORTED);
}

API Ret nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 0; LEAVE(SUCCESS); }
API Ret nvmlDeviceIsMigDeviceHandle(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 0; LEAVE(SUCCESS); }

API Ret nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, u32 index, Gpu **out)
{
    ENTER_DEVICE(gpu);
    (void)index;
    (void)out;
    LEAVE(NOT_FOUND);
}

#define NO_MIG(symbol, ...) API Ret symbol(Gpu *gpu, ##__VA_ARGS__) { ENTER_DEVICE(gpu); LEAVE(NOT_SUPPORTED); }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NO_MIG(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, Gpu **out)
NO_MIG(nvmlDeviceGetAttributes_v2, Attributes *out)
NO_MIG(nvmlDeviceGetGpuInstanceId, u32 *out)
NO_MIG(nvmlDeviceGetComputeInstanceId, u32 *out)
NO_MIG(nvmlDeviceGetGpuInstanceById, u32 id, void **out)
NO_MIG(nvmlDeviceGetGpuInstanceProfileInfo, u32 profile, void *out)

/* An instance handle can not exist here, so these are never reached with a good one. */
API Ret nvmlGpuInstanceGetInfo(void *gi, void *out) { ENTER(); LEAVE(NOT_SUPPORTED); }
API Ret nvmlGpuInstanceGetComputeInstanceById(void *gi, u32 id, void **out) { ENTER(); LEAVE(NOT_SUPPORTED); }
API Ret nvmlComputeInstanceGetInfo_v2(void *ci, void *out) { ENTER(); LEAVE(NOT_SUPPORTED); }

API Ret nvmlGpuInstanceGetComputeInstanceProfileInfo(void *gi, u32 profile, u32 engine, void *out)
{
    ENTER();
    LEAVE(NOT_SUPPORTED);
}

/* ---- for the test that holds our layouts against pynvml's ---- */

API size_t nvml_stub_sizeof(const char *name)
{
#define SIZE(text, type) if (strcmp(name, text) == 0) return sizeof(type)
    SIZE("nvmlPciInfo_t", PciInfo);
    SIZE("c_nvmlMemory_t", Memory);
    SIZE("c_nvmlMemory_v2_t", MemoryV2);
    SIZE("c_nvmlEventData_t", EventData);
    SIZE("c_nvmlFieldValue_t", FieldValue);
    SIZE("c_nvmlUtilization_t", Utilization);
    SIZE("c_nvmlProcessInfo_v3_t", ProcessInfo);
    SIZE("c_nvmlProcessUtilizationSample_t", ProcessSample);
    SIZE("c_nvmlDeviceAttributes", Attributes);
    return 0;
}

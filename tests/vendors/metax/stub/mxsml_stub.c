/* A libmxsml.so for machines without MetaX hardware: MXSML's binary interface, scripted through a text file.
 *
 * The environment variable XPU_MXSML_STUB names the control file. Besides the lines of ../../stub/control.h and
 * ../../stub/processes.h it has those below. A card is named by its slot, which never changes; SYMBOL is without "mxSml":
 *
 *   cards N                     slots 0..N-1 hold a card (at most 64; 8 without this line)
 *   order S S ...               the slots in the order in which the library finds them
 *   remove I                    slot I is empty
 *   uuid I TEXT, bdf I TEXT, name I TEXT     what the card says of itself; without TEXT nothing
 *   node I N                    its nodeId
 *   memory I KIB USED           of the whole card
 *   dies I N                    it has N dies, which share its memory; calls that name none tell of die 0
 *   pf I VFS                    the card is a physical function with so many virtual ones
 *   limited I                   the card works in part only
 *   state I N                   GetDeviceState
 *   mmio I N                    GetPciMmioState; 1 without this line
 *   usage I PERCENT [ENCODER DECODER]     of the compute engine, and of the engines for video
 *   power I MW                  of the whole board, which gets it by three ways
 *   temperature I HOTSPOT HBM   hundredths of a degree; HBM 0: the card has no such sensor
 *   clocks I XCORE MEMORY       MHz
 *   sliceusage I SGPU N         ten-thousandths of the compute
 *   longlists                   lists of processes that do not fit answer InsufficientSize
 *   unavailable I DIE CODE TEXT
 *   ecc I DIE SRAMCE SRAMUE DRAMCE DRAMUE RETIRED
 *   pcievent I TYPE BIT COUNT NAME
 *   level I J LEVEL             the path between two cards, as GetDeviceTopology numbers it
 *   link I PORT J               the card's MetaXLink PORT leads to card J; such a line takes away the default links
 *   nolinks                     no card has a MetaXLink
 *   use I SGPU                  the slice of the card is in use
 *   quota I MIB                 slices of the card may have so much; the card's memory without this line
 *   astray I MIB                so much is neither free nor in a slice
 *   readonly                    sysfs is: every call that writes answers SysfsWriteError, EROFS
 *   ebusy                       what is in use answers SysfsWriteError, EBUSY, instead of BusyDevice
 *   event SEQ I TYPE TEXT       an event, once for every event set that was made before the line came
 *
 * What calls change lies in <control file>.state and outlives every process, as slices outlive it on hardware. It is
 * replaced as a whole by those who hold the lock on <control file>.lock. Slots and numbers as above, texts in
 * hexadecimal digits, - for none:
 *
 *   next SERIAL                 of the next slice, which its UUID bears
 *   minors BASE                 the first minor number of slices
 *   toggle I N, class I N       the card's sGPU toggle and SchedClass
 *   slice I ID SERIAL MINOR MIB PERCENT ALIAS ANNOTATIONS_ID
 *
 * Built with -DWITHOUT_EVENTS, -DWITHOUT_SGPU, -DWITHOUT_REINIT, -DWITHOUT_USAGE (power, temperature, clocks, the use
 * of single dies and of slices) or -DWITHOUT_PROCESSES it lacks those functions, with -DWITHOUT_PROCESSES_V2 or
 * -DWITHOUT_PROCESSES_V3 that version of the list.
 */
#define STUB "mxsml"
#define ENVIRONMENT "XPU_MXSML_STUB"
#include "../../stub/control.h"

#include <poll.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/inotify.h>

enum {
    SUCCESS = 0, FAILURE = 1, NO_DEVICE = 2, NOT_SUPPORTED = 3, SYSFS_ERROR = 4, SYSFS_WRITE_ERROR = 5,
    INVALID_DEVICE = 6, INVALID_DIE = 7, PERMISSION_DENIED = 8, INVALID_INPUT = 9, INSUFFICIENT_SIZE = 10,
    BUSY_DEVICE = 23, LOAD_DLL_FAILURE = 26
};
enum { SLOTS = 64, DIES = 2, LINKS = 7, SLICES = 16, VFS = 8, EVENTS = 256, USES = 1024, PCI_EVENTS = 256, SETS = 1024 };
enum { FIRST_PF = 100, ALL = SLOTS, STEP = 128, NAMES = 32, UUID = 96 };
enum { BARE = 0, PF = 1, VF = 2, BRAND_C = 2, EID = 1, WAYS = 3, DEVICES_OF_PROCESS = 64, COMPARED = 2048 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 Ret;

typedef struct { u32 device, type; char bdf[32]; u32 gpu, node; char uuid[96]; u32 brand, mode; char name[32]; } DeviceInfo;
typedef struct { int number, device[128]; } DeviceIds;
typedef struct { long visible, visible_used, vram, vram_used, xtt, xtt_used; } MemoryInfo;
typedef struct { int code; char reason[64]; } Unavailable;
typedef struct { u32 sram_ce, sram_ue, dram_ce, dram_ue, retired; } Ecc;
typedef struct { int bit, count; char first[20], name[64]; } PciEvent;
typedef struct { int device; char bdf[32]; } Remote;
typedef struct { int device; char bdf[32]; u32 die; } DieRemote;
typedef struct { u32 parent, id, vram, sw_priority, compute, minor, priority; char uuid[96]; } SgpuInfo;
typedef struct { u32 total, vram, compute; } Quota;
typedef struct { int device, type; char data[1024]; } EventInfo;
typedef struct { long total, used, free; } SgpuMemory;
typedef struct { u32 voltage, current, power; } BoardPower;
typedef struct { char bdf[32]; u32 gpu; unsigned long memory; } ProcessGpu;
typedef struct { char bdf[32]; u32 gpu; unsigned long memory; u32 die; } ProcessGpuV2;
typedef struct { char bdf[32]; u32 gpu; unsigned long memory; u32 die; int sgpu; } ProcessGpuV3;
typedef struct { u32 pid; char name[64]; u32 gpus; ProcessGpu gpu[64]; } ProcessInfo;
typedef struct { u32 pid; char name[64]; u32 gpus; ProcessGpuV2 gpu[64]; } ProcessInfoV2;
typedef struct { u32 pid; char name[64]; u32 gpus; ProcessGpuV3 gpu[64]; } ProcessInfoV3;

_Static_assert(sizeof(DeviceInfo) == 184 && offsetof(DeviceInfo, uuid) == 48, "mxSmlDeviceInfo_t");
_Static_assert(sizeof(DeviceIds) == 516, "mxSmlVirtualDeviceIds_t");
_Static_assert(sizeof(MemoryInfo) == 48, "mxSmlMemoryInfo_t");
_Static_assert(sizeof(Unavailable) == 68, "mxSmlDeviceUnavailableReasonInfo_t");
_Static_assert(sizeof(Ecc) == 20, "mxSmlEccErrorCount_t");
_Static_assert(sizeof(PciEvent) == 92 && offsetof(PciEvent, name) == 28, "mxSmlPciEventInfo_t");
_Static_assert(sizeof(Remote) == 36 && sizeof(DieRemote) == 40, "mxSmlMetaXLinkRemoteInfo_t");
_Static_assert(sizeof(SgpuInfo) == 124 && offsetof(SgpuInfo, uuid) == 28, "mxSmlSgpuInfo_t");
_Static_assert(sizeof(Quota) == 12, "mxSmlSgpuAvailableQuota_t");
_Static_assert(sizeof(EventInfo) == 1032, "mxSmlEvent_t");
_Static_assert(sizeof(SgpuMemory) == 24, "mxSmlSgpuMemoryInfo_t");
_Static_assert(sizeof(BoardPower) == 12, "mxSmlBoardWayElectricInfo_t");
_Static_assert(sizeof(ProcessGpu) == 48 && offsetof(ProcessGpu, memory) == 40, "mxSmlProcessGpuInfo_t");
_Static_assert(sizeof(ProcessGpuV2) == 56 && offsetof(ProcessGpuV2, die) == 48, "mxSmlProcessGpuInfo_v2_t");
_Static_assert(sizeof(ProcessGpuV3) == 56 && offsetof(ProcessGpuV3, sgpu) == 52, "mxSmlProcessGpuInfo_v3_t");
_Static_assert(sizeof(ProcessInfo) == 3144 && offsetof(ProcessInfo, gpu) == 72, "mxSmlProcessInfo_t");
_Static_assert(sizeof(ProcessInfoV2) == 3656 && offsetof(ProcessInfoV2, gpu) == 72, "mxSmlProcessInfo_v2_t");
_Static_assert(sizeof(ProcessInfoV3) == 3656 && offsetof(ProcessInfoV3, gpus) == 68, "mxSmlProcessInfo_v3_t");

#include "../../stub/processes.h"

typedef struct { u64 seq; u32 slot; int type; char data[256]; } Event;
typedef struct { u32 slot, sgpu; } Use;
typedef struct { u32 slot, type; PciEvent event; } SlotPciEvent;
typedef struct {
    int removed, limited, state;
    u32 vfs, dies, node, mmio, usage, encoder, decoder, quota, astray, power, xcore, mc0, slice_usage[SLICES];
    int hotspot, hbm;
    long memory, used;
    char uuid[UUID], bdf[32], name[32];
    Unavailable unavailable[DIES];
    Ecc ecc[DIES];
    u32 level[SLOTS];
    int link[LINKS];
} Card;

static struct {
    u32 cards, order[SLOTS];
    Card card[SLOTS];
    int has_links, read_only, ebusy, long_lists;
    Event events[EVENTS];
    Use uses[USES];
    SlotPciEvent pci_events[PCI_EVENTS];
    int event_count, use_count, pci_event_count;
} script;

/* What an index meant when the library last looked for devices. */
typedef struct { u32 slot, mode, vf; } Found;
static struct { Found device[SLOTS * VFS], pf[SLOTS]; u32 devices, pfs; } list;

typedef struct { int used, registered; u32 slot, index; u64 taken, look, serial; } EventSet;

/* ---- the control file ---- */

static void reset_card(u32 slot)
{
    Card *card = &script.card[slot];
    card->state = 1;
    card->dies = card->mmio = 1;
    card->memory = 64L << 20;
    card->used = 858L << 10;
    card->power = 96000;
    card->hotspot = 4150;
    card->xcore = 1500;
    card->mc0 = 1600;
    snprintf(card->uuid, sizeof card->uuid, "GPU-4d580000-0000-0000-0000-%012u", slot);
    snprintf(card->bdf, sizeof card->bdf, "0000:%02x:00.0", 0x20 + slot);
    strcpy(card->name, "MXC500");
    for (u32 other = 0; other < SLOTS; other++)
        card->level[other] = other == slot ? 0 : slot / 4 == other / 4 ? 5 : 6;
    for (int port = 0; port < LINKS; port++)
        card->link[port] = NOBODY;
}

static void reset_script(void)
{
    memset(&script, 0, sizeof script);
    reset_processes();
    script.cards = 8;
    for (u32 slot = 0; slot < SLOTS; slot++) {
        script.order[slot] = slot;
        reset_card(slot);
    }
}

/* Four cards that follow one another are one group, each with a link to each other. */
static void link_groups(void)
{
    if (script.has_links)
        return;
    for (u32 slot = 0; slot < SLOTS; slot++)
        for (u32 other = slot / 4 * 4, port = 0; other < slot / 4 * 4 + 4; other++)
            if (other != slot)
                script.card[slot].link[port++] = (int)other;
}

static int parse_text(const char *line)
{
    u32 slot;
    char verb[16], text[UUID] = "";
    if (sscanf(line, "%15s %u %95[^\n]", verb, &slot, text) < 2 || slot >= SLOTS)
        return 0;
    Card *card = &script.card[slot];
    if (strcmp(verb, "uuid") == 0)
        snprintf(card->uuid, sizeof card->uuid, "%s", text);
    else if (strcmp(verb, "bdf") == 0)
        snprintf(card->bdf, sizeof card->bdf, "%.31s", text);
    else if (strcmp(verb, "name") == 0)
        snprintf(card->name, sizeof card->name, "%.31s", text);
    else
        return 0;
    return 1;
}

static int parse_card(const char *line)
{
    u32 slot, other, number;
    long memory, used;
    if (sscanf(line, "remove %u", &slot) == 1 && slot < SLOTS)
        script.card[slot].removed = 1;
    else if (sscanf(line, "limited %u", &slot) == 1 && slot < SLOTS)
        script.card[slot].limited = 1;
    else if (sscanf(line, "node %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].node = number;
    else if (sscanf(line, "dies %u %u", &slot, &number) == 2 && slot < SLOTS && number - 1 < DIES)
        script.card[slot].dies = number;
    else if (sscanf(line, "pf %u %u", &slot, &number) == 2 && slot < SLOTS && number - 1 < VFS)
        script.card[slot].vfs = number;
    else if (sscanf(line, "state %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].state = (int)number;
    else if (sscanf(line, "mmio %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].mmio = number;
    else if (sscanf(line, "quota %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].quota = number;
    else if (sscanf(line, "astray %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].astray = number;
    else if (sscanf(line, "level %u %u %u", &slot, &other, &number) == 3 && slot < SLOTS && other < SLOTS)
        script.card[slot].level[other] = script.card[other].level[slot] = number;
    else if (sscanf(line, "memory %u %ld %ld", &slot, &memory, &used) == 3 && slot < SLOTS) {
        script.card[slot].memory = memory;
        script.card[slot].used = used;
    } else if (sscanf(line, "link %u %u %u", &slot, &number, &other) == 3 && slot < SLOTS && number < LINKS) {
        script.card[slot].link[number] = other < SLOTS ? (int)other : NOBODY;
        script.has_links = 1;
    } else
        return 0;
    return 1;
}

static int parse_use(const char *line)
{
    u32 slot, id, number;
    Card it = {0};
    if (sscanf(line, "usage %u %u %u %u", &slot, &it.usage, &it.encoder, &it.decoder) >= 2 && slot < SLOTS) {
        script.card[slot].usage = it.usage;
        script.card[slot].encoder = it.encoder;
        script.card[slot].decoder = it.decoder;
    } else if (sscanf(line, "power %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.card[slot].power = number;
    else if (sscanf(line, "temperature %u %d %d", &slot, &it.hotspot, &it.hbm) == 3 && slot < SLOTS) {
        script.card[slot].hotspot = it.hotspot;
        script.card[slot].hbm = it.hbm;
    } else if (sscanf(line, "clocks %u %u %u", &slot, &it.xcore, &it.mc0) == 3 && slot < SLOTS) {
        script.card[slot].xcore = it.xcore;
        script.card[slot].mc0 = it.mc0;
    } else if (sscanf(line, "sliceusage %u %u %u", &slot, &id, &number) == 3 && slot < SLOTS && id < SLICES)
        script.card[slot].slice_usage[id] = number;
    else if (strcmp(line, "longlists\n") == 0)
        script.long_lists = 1;
    else
        return 0;
    return 1;
}

static int parse_health(const char *line)
{
    u32 slot, die;
    Unavailable reason = {0};
    Ecc ecc;
    SlotPciEvent it = {0};
    if (sscanf(line, "unavailable %u %u %d %63[^\n]", &slot, &die, &reason.code, reason.reason) >= 3 && slot < SLOTS
        && die < DIES)
        script.card[slot].unavailable[die] = reason;
    else if (sscanf(line, "ecc %u %u %u %u %u %u %u", &slot, &die, &ecc.sram_ce, &ecc.sram_ue, &ecc.dram_ce,
                    &ecc.dram_ue, &ecc.retired) == 7 && slot < SLOTS && die < DIES)
        script.card[slot].ecc[die] = ecc;
    else if (sscanf(line, "pcievent %u %u %d %d %63[^\n]", &it.slot, &it.type, &it.event.bit, &it.event.count,
                    it.event.name) == 5 && script.pci_event_count < PCI_EVENTS) {
        strcpy(it.event.first, "2026-01-01 00:00:00");
        script.pci_events[script.pci_event_count++] = it;
    } else
        return 0;
    return 1;
}

static int parse_happening(const char *line)
{
    Event event = {0};
    Use use = {0};
    if (sscanf(line, "event %llu %u %d %255[^\n]", &event.seq, &event.slot, &event.type, event.data) >= 3) {
        if (script.event_count < EVENTS)
            script.events[script.event_count++] = event;
    } else if (sscanf(line, "use %u %u", &use.slot, &use.sgpu) == 2) {
        if (script.use_count < USES)
            script.uses[script.use_count++] = use;
    } else
        return 0;
    return 1;
}

static int parse_line(const char *line)
{
    u32 number;
    if (sscanf(line, "cards %u", &number) == 1)
        script.cards = number <= SLOTS ? number : SLOTS;
    else if (strcmp(line, "nolinks\n") == 0)
        script.has_links = 1;
    else if (strcmp(line, "readonly\n") == 0)
        script.read_only = 1;
    else if (strcmp(line, "ebusy\n") == 0)
        script.ebusy = 1;
    else
        return parse_slots(line, "order ", script.order, SLOTS) || parse_card(line) || parse_text(line)
            || parse_health(line) || parse_happening(line) || parse_use(line) || parse_process(line);
    return 1;
}

static void complete_script(void)
{
    link_groups();
}

/* ---- the hardware's own state ---- */

#ifndef WITHOUT_SGPU

typedef struct { u32 used, serial, minor, vram, compute; char alias[32], annotations[96]; } Slice;
static struct {
    u64 next;
    u32 minors;
    struct { u32 toggle, sched_class; Slice slice[SLICES]; } card[SLOTS];
} hardware;

static void unhex(const char *hex, char *out, size_t size)
{
    unsigned byte;
    size_t length = 0;
    for (; length + 1 < size && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[length++] = (char)byte;
    out[length] = 0;
}

static void parse_state(const char *line)
{
    u32 slot, id, number;
    u64 serial;
    Slice it = {.used = 1};
    char alias[70], annotations[200];
    if (sscanf(line, "next %llu", &serial) == 1)
        hardware.next = serial;
    else if (sscanf(line, "minors %u", &number) == 1)
        hardware.minors = number;
    else if (sscanf(line, "toggle %u %u", &slot, &number) == 2 && slot < SLOTS)
        hardware.card[slot].toggle = number;
    else if (sscanf(line, "class %u %u", &slot, &number) == 2 && slot < SLOTS)
        hardware.card[slot].sched_class = number;
    else if (sscanf(line, "slice %u %u %u %u %u %u %69s %199s", &slot, &id, &it.serial, &it.minor, &it.vram, &it.compute,
                    alias, annotations) == 8 && slot < SLOTS && id < SLICES) {
        unhex(alias, it.alias, sizeof it.alias);
        unhex(annotations, it.annotations, sizeof it.annotations);
        hardware.card[slot].slice[id] = it;
    }
}

/* Whoever replaces the file does it at once: reading needs no lock. */
static void read_hardware(void)
{
    char path[PATH_ROOM], line[512];
    memset(&hardware, 0, sizeof hardware);
    hardware.next = 1;
    hardware.minors = 160;
    FILE *file = fopen(path_with(".state", path), "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL)
        parse_state(line);
    fclose(file);
}

static void put_hex(FILE *file, const char *text)
{
    if (text[0] == 0)
        fputs(" -", file);
    else
        fputc(' ', file);
    for (; *text; text++)
        fprintf(file, "%02x", (unsigned char)*text);
}

static void write_hardware(void)
{
    char path[PATH_ROOM], unfinished[PATH_ROOM];
    FILE *file = fopen(path_with(".state.new", unfinished), "we");
    if (file == NULL) {
        perror("mxsml stub: state");
        return;
    }
    fprintf(file, "next %llu\nminors %u\n", hardware.next, hardware.minors);
    for (u32 slot = 0; slot < SLOTS; slot++) {
        if (hardware.card[slot].toggle)
            fprintf(file, "toggle %u %u\n", slot, hardware.card[slot].toggle);
        if (hardware.card[slot].sched_class)
            fprintf(file, "class %u %u\n", slot, hardware.card[slot].sched_class);
        for (u32 id = 0; id < SLICES; id++) {
            const Slice *it = &hardware.card[slot].slice[id];
            if (!it->used)
                continue;
            fprintf(file, "slice %u %u %u %u %u %u", slot, id, it->serial, it->minor, it->vram, it->compute);
            put_hex(file, it->alias);
            put_hex(file, it->annotations);
            fputc('\n', file);
        }
    }
    fclose(file);
    if (rename(unfinished, path_with(".state", path)) != 0)
        perror("mxsml stub: state");
}

static int lock_hardware(void)
{
    char path[PATH_ROOM];
    int file = open(path_with(".lock", path), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0)
        flock(file, LOCK_EX);
    read_hardware();
    return file;
}

#endif

/* ---- calls ---- */

static Ret fail_with(Ret ret, int error)
{
    errno = error;
    return ret;
}

/* Called with the mutex held. */
static Ret answered(const char *symbol, int slot)
{
    const Rule *fail = scripted(symbol, slot);
    return fail == NULL ? SUCCESS : fail_with((Ret)fail->value, fail->error);
}

static const Found *find(u32 index)
{
    if (index < list.devices)
        return &list.device[index];
    return index >= FIRST_PF && index - FIRST_PF < list.pfs ? &list.pf[index - FIRST_PF] : NULL;
}

static int is_present(u32 slot)
{
    return slot < script.cards && !script.card[slot].removed;
}

static Ret enter(const char *symbol)
{
    pthread_mutex_lock(&mutex);
    return answered(symbol, NOBODY);
}

/* A card that went away since the library looked answers as an index that is none. */
static Ret enter_device(const char *symbol, u32 index, const Found **found)
{
    pthread_mutex_lock(&mutex);
    *found = find(index);
    Ret ret = answered(symbol, *found == NULL ? NOBODY : (int)(*found)->slot);
    if (ret != SUCCESS)
        return ret;
    return *found != NULL && is_present((*found)->slot) ? SUCCESS : INVALID_DEVICE;
}

static Ret enter_die(const char *symbol, u32 index, u32 die, const Found **found)
{
    Ret ret = enter_device(symbol, index, found);
    return ret == SUCCESS && die >= script.card[(*found)->slot].dies ? INVALID_DIE : ret;
}

static Ret leave(Ret ret)
{
    int error = errno;
    pthread_mutex_unlock(&mutex);
    errno = error;
    return ret;
}

/* The mutex is held from here to LEAVE. */
#define SYMBOL (__func__ + sizeof "mxSml" - 1)
#define GO_ON(entered) do { Ret ret_ = entered; if (ret_ != SUCCESS) return leave(ret_); } while (0)
#define ENTER() GO_ON(enter(SYMBOL))
#define ENTER_DEVICE(index) const Found *it = NULL; GO_ON(enter_device(SYMBOL, index, &it))
#define ENTER_DIE(index, die) const Found *it = NULL; GO_ON(enter_die(SYMBOL, index, die, &it))
#define CARD (&script.card[it->slot])
#define LEAVE(ret) return leave(ret)

static Ret put_text(char *out, u32 *size, const char *text)
{
    u32 needed = (u32)strlen(text) + 1;
    int fits = needed <= *size;
    *size = needed;
    if (!fits)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

/* ---- library ---- */

static void look_for_devices(void)
{
    memset(&list, 0, sizeof list);
    for (u32 place = 0; place < SLOTS; place++) {
        u32 slot = script.order[place];
        if (!is_present(slot))
            continue;
        if (!script.card[slot].vfs)
            list.device[list.devices++] = (Found){slot, BARE, 0};
        else
            list.pf[list.pfs++] = (Found){slot, PF, 0};
        for (u32 vf = 0; vf < script.card[slot].vfs && list.devices < FIRST_PF; vf++)
            list.device[list.devices++] = (Found){slot, VF, vf};
    }
}

/* After an init that failed there are no devices. */
static Ret init(const char *symbol, int again)
{
    pthread_mutex_lock(&mutex);
    name_control();
    Ret ret = answered(symbol, NOBODY);
    if (ret != SUCCESS)
        memset(&list, 0, sizeof list);
    else if (again || list.devices + list.pfs == 0)
        look_for_devices();
    return leave(ret);
}

API Ret mxSmlInit(void) { return init(SYMBOL, 0); }
#ifndef WITHOUT_REINIT
API Ret mxSmlInitWithFlags(u32 flags) { return init(SYMBOL, flags == 1); }
#endif

API const char *mxSmlGetErrorString(Ret ret)
{
    switch (ret) {
    case SUCCESS: return "Success";
    case NO_DEVICE: return "No device";
    case NOT_SUPPORTED: return "Operation not support";
    case SYSFS_ERROR: return "Sysfs error";
    case SYSFS_WRITE_ERROR: return "Sysfs write error";
    case INVALID_DEVICE: return "Invalid device id";
    case BUSY_DEVICE: return "Busy device";
    case LOAD_DLL_FAILURE: return "Load dll failure";
    default: return NULL;
    }
}

API u32 mxSmlGetDeviceCount(void)
{
    u32 count = enter(SYMBOL) == SUCCESS ? list.devices : 0;
    return leave(count);
}

API u32 mxSmlGetPfDeviceCount(void)
{
    u32 count = enter(SYMBOL) == SUCCESS ? list.pfs : 0;
    return leave(count);
}

API Ret mxSmlGetMacaVersion(char *out, u32 *size) { ENTER(); LEAVE(put_text(out, size, "3.5.3.18")); }

/* ---- devices ---- */

static void describe(const Found *found, u32 index, DeviceInfo *out)
{
    const Card *card = &script.card[found->slot];
    memset(out, 0, sizeof *out);
    out->device = out->gpu = index;
    out->node = card->node;
    out->brand = BRAND_C;
    out->mode = found->mode;
    strcpy(out->bdf, card->bdf);
    strcpy(out->uuid, card->uuid);
    strcpy(out->name, card->name);
    if (found->mode == VF) {
        size_t length = strlen(out->bdf);
        if (length)
            out->bdf[length - 1] = (char)('1' + found->vf);
        snprintf(out->uuid, sizeof out->uuid, "GPU-4d580002-0000-0000-%04u-%012u", found->vf, found->slot);
    }
}

API Ret mxSmlGetDeviceInfo(u32 index, DeviceInfo *out)
{
    ENTER_DEVICE(index);
    if (CARD->limited)
        LEAVE(NOT_SUPPORTED);
    describe(it, index, out);
    LEAVE(SUCCESS);
}

API Ret mxSmlGetLimitedDeviceInfo(u32 index, DeviceInfo *out)
{
    ENTER_DEVICE(index);
    describe(it, index, out);
    LEAVE(CARD->limited ? SUCCESS : INVALID_DEVICE);
}

API Ret mxSmlGetAllLimitedDevices(DeviceIds *out)
{
    ENTER();
    out->number = 0;
    for (u32 index = 0; index < list.devices && out->number < 128; index++)
        if (script.card[list.device[index].slot].limited)
            out->device[out->number++] = (int)index;
    LEAVE(SUCCESS);
}

API Ret mxSmlGetVirtualDevicesByPhysicalId(u32 index, DeviceIds *out)
{
    ENTER_DEVICE(index);
    if (it->mode != PF)
        LEAVE(NOT_SUPPORTED);
    out->number = 0;
    for (u32 vf = 0; vf < list.devices && out->number < 128; vf++)
        if (list.device[vf].mode == VF && list.device[vf].slot == it->slot)
            out->device[out->number++] = (int)vf;
    LEAVE(SUCCESS);
}

API Ret mxSmlGetDeviceDieCount(u32 index, u32 *out) { ENTER_DEVICE(index); *out = CARD->dies; LEAVE(SUCCESS); }
API Ret mxSmlGetDeviceVersion(u32 index, u32 unit, char *out, u32 *size)
{
    ENTER_DEVICE(index);
    LEAVE(unit > 7 ? INVALID_INPUT : put_text(out, size, unit == 1 ? "3.6.11" : "1.30.0.0"));
}

static void memory_of(const Found *found, MemoryInfo *out)
{
    const Card *card = &script.card[found->slot];
    long parts = card->dies * (found->mode == VF ? card->vfs : 1);
    memset(out, 0, sizeof *out);
    out->visible = out->vram = card->memory / parts;
    out->visible_used = out->vram_used = card->used / parts;
}

API Ret mxSmlGetMemoryInfo(u32 index, MemoryInfo *out)
{
    ENTER_DEVICE(index);
    memory_of(it, out);
    LEAVE(SUCCESS);
}

API Ret mxSmlGetDieMemoryInfo(u32 index, u32 die, MemoryInfo *out)
{
    ENTER_DIE(index, die);
    memory_of(it, out);
    LEAVE(SUCCESS);
}

static Ret usage_of(const Found *found, u32 ip, int *out)
{
    const Card *card = &script.card[found->slot];
    const u32 usage[] = {0, card->encoder, card->decoder, 0, card->usage};
    if (ip > 4)
        return INVALID_INPUT;
    *out = (int)usage[ip];
    return SUCCESS;
}

API Ret mxSmlGetDeviceIpUsage(u32 index, u32 ip, int *out)
{
    ENTER_DEVICE(index);
    LEAVE(usage_of(it, ip, out));
}

#ifndef WITHOUT_USAGE

API Ret mxSmlGetDieIpUsage(u32 index, u32 die, u32 ip, int *out)
{
    ENTER_DIE(index, die);
    LEAVE(usage_of(it, ip, out));
}

static Ret temperature_of(const Found *found, u32 sensor, int *out)
{
    const Card *card = &script.card[found->slot];
    if (sensor != 0 && (sensor != 15 || !card->hbm))
        return NOT_SUPPORTED;
    *out = sensor ? card->hbm : card->hotspot;
    return SUCCESS;
}

API Ret mxSmlGetTemperatureInfo(u32 index, u32 sensor, int *out)
{
    ENTER_DEVICE(index);
    LEAVE(temperature_of(it, sensor, out));
}

/* The second die is one degree hotter. */
API Ret mxSmlGetDieTemperatureInfo(u32 index, u32 die, u32 sensor, int *out)
{
    ENTER_DIE(index, die);
    Ret ret = temperature_of(it, sensor, out);
    if (ret == SUCCESS)
        *out += 100 * (int)die;
    LEAVE(ret);
}

API Ret mxSmlGetBoardPowerInfo(u32 index, u32 *size, BoardPower *out)
{
    ENTER_DEVICE(index);
    u32 room = *size, part = CARD->power / WAYS;
    *size = WAYS;
    for (u32 way = 0; way < WAYS && WAYS <= room; way++)
        out[way] = (BoardPower){12000, part / 12, way ? part : CARD->power - part * (WAYS - 1)};
    LEAVE(WAYS > room ? INSUFFICIENT_SIZE : SUCCESS);
}

API Ret mxSmlGetClocks(u32 index, u32 ip, u32 *size, u32 *out)
{
    ENTER_DEVICE(index);
    if (ip != 11 && ip != 3)
        LEAVE(INVALID_INPUT);
    u32 room = *size;
    *size = 1;
    if (room)
        out[0] = ip == 11 ? CARD->xcore : CARD->mc0;
    LEAVE(room ? SUCCESS : INSUFFICIENT_SIZE);
}

#endif

/* ---- health ---- */

API Ret mxSmlGetDeviceState(u32 index, int *out) { ENTER_DEVICE(index); *out = CARD->state; LEAVE(SUCCESS); }
API Ret mxSmlGetPciMmioState(u32 index, u32 *out) { ENTER_DEVICE(index); *out = CARD->mmio; LEAVE(SUCCESS); }

API Ret mxSmlGetDeviceUnavailableReason(u32 index, Unavailable *out)
{
    ENTER_DEVICE(index);
    *out = CARD->unavailable[0];
    LEAVE(SUCCESS);
}

API Ret mxSmlGetDieUnavailableReason(u32 index, u32 die, Unavailable *out)
{
    ENTER_DIE(index, die);
    *out = CARD->unavailable[die];
    LEAVE(SUCCESS);
}

API Ret mxSmlGetTotalEccErrors(u32 index, Ecc *out) { ENTER_DEVICE(index); *out = CARD->ecc[0]; LEAVE(SUCCESS); }
API Ret mxSmlGetDieTotalEccErrors(u32 index, u32 die, Ecc *out)
{
    ENTER_DIE(index, die);
    *out = CARD->ecc[die];
    LEAVE(SUCCESS);
}

API Ret mxSmlGetPciEventInfo(u32 index, u32 type, PciEvent *out, u32 *size)
{
    ENTER_DEVICE(index);
    u32 room = *size;
    *size = 0;
    for (int i = 0; i < script.pci_event_count; i++) {
        const SlotPciEvent *event = &script.pci_events[i];
        if (event->slot == it->slot && event->type == type && (*size)++ < room)
            out[*size - 1] = event->event;
    }
    LEAVE(type > 4 ? INVALID_INPUT : *size > room ? INSUFFICIENT_SIZE : SUCCESS);
}

/* ---- topology ---- */

static int index_of(u32 slot)
{
    for (u32 index = 0; index < list.devices; index++)
        if (list.device[index].slot == slot && list.device[index].mode == BARE)
            return (int)index;
    for (u32 pf = 0; pf < list.pfs; pf++)
        if (list.pf[pf].slot == slot)
            return (int)(FIRST_PF + pf);
    return NOBODY;
}

API Ret mxSmlGetDeviceTopology(u32 index, u32 other, u32 *out)
{
    ENTER_DEVICE(index);
    const Found *far = find(other);
    if (far == NULL)
        LEAVE(INVALID_DEVICE);
    *out = CARD->level[far->slot];
    LEAVE(SUCCESS);
}

static Ret remote_of(const Found *found, u32 port, int *index, char bdf[32])
{
    int peer = port < LINKS ? script.card[found->slot].link[port] : NOBODY;
    if (port >= LINKS)
        return INVALID_INPUT;
    if (peer == NOBODY || !is_present((u32)peer))
        return NO_DEVICE;
    *index = index_of((u32)peer);
    strcpy(bdf, script.card[peer].bdf);
    return SUCCESS;
}

API Ret mxSmlGetMetaXLinkRemoteInfo(u32 index, u32 port, Remote *out)
{
    ENTER_DEVICE(index);
    LEAVE(remote_of(it, port, &out->device, out->bdf));
}

API Ret mxSmlGetDieMetaXLinkRemoteInfo(u32 index, u32 die, u32 port, DieRemote *out)
{
    ENTER_DIE(index, die);
    out->die = die;
    LEAVE(remote_of(it, port, &out->device, out->bdf));
}

/* ---- processes ---- */

#ifndef WITHOUT_SGPU
static void uuid_of_slice(u32 slot, u32 id, char out[UUID])
{
    snprintf(out, UUID, "GPU-4d580001-0000-0000-%04u-%012u", slot, hardware.card[slot].slice[id].serial);
}
#endif

static int has_uuid(unsigned slot, const char *uuid, int *slice)
{
    if (strcmp(script.card[slot].uuid, uuid) == 0)
        return 1;
#ifndef WITHOUT_SGPU
    char own[UUID];
    for (u32 id = 0; id < SLICES; id++) {
        uuid_of_slice(slot, id, own);
        if (hardware.card[slot].slice[id].used && strcmp(own, uuid) == 0) {
            *slice = (int)id;
            return 1;
        }
    }
#else
    (void)slice;
#endif
    return 0;
}

#ifndef WITHOUT_PROCESSES

static void list_all(void)
{
#ifndef WITHOUT_SGPU
    read_hardware();
#endif
    list_processes(script.cards);
}

/* Add what the process uses of a card: of each die its part. */
static void add_devices(ProcessInfoV3 *info, const Process *process)
{
    const Card *card = &script.card[process->slot];
    for (u32 die = 0; die < card->dies && info->gpus < DEVICES_OF_PROCESS; die++) {
        ProcessGpuV3 *gpu = &info->gpu[info->gpus++];
        *gpu = (ProcessGpuV3){.gpu = (u32)index_of(process->slot), .memory = process->memory / card->dies, .die = die,
                              .sgpu = process->slice};
        strcpy(gpu->bdf, card->bdf);
    }
}

/* What one process uses of all cards. Of long lists only the one card is told. Whether the process stands in `listed`
 * before, too. */
static int describe_process(u32 place, ProcessInfoV3 *info)
{
    const Process *process = &listed[place];
    memset(info, 0, sizeof *info);
    info->pid = process->pid;
    snprintf(info->name, sizeof info->name, "process %u", process->pid);
    if (listed_count > COMPARED) {
        add_devices(info, process);
        return 0;
    }
    for (u32 other = 0; other < listed_count; other++) {
        if (listed[other].pid != process->pid)
            continue;
        if (other < place && listed[other].slot == process->slot)
            return 1;
        add_devices(info, &listed[other]);
    }
    return 0;
}

static void put_process(int version, void *out, u32 place, const ProcessInfoV3 *info)
{
    if (version == 3) {
        ((ProcessInfoV3 *)out)[place] = *info;
        return;
    }
    ProcessInfo *first = (ProcessInfo *)out + place;
    ProcessInfoV2 *second = (ProcessInfoV2 *)out + place;
    if (version == 2)
        memcpy(second, info, sizeof *second);
    else
        memcpy(first, info, offsetof(ProcessInfo, gpu));
    for (u32 i = 0; i < info->gpus; i++)
        if (version == 2)
            memset((char *)&second->gpu[i] + offsetof(ProcessGpuV3, sgpu), 0, sizeof(int));
        else
            memcpy(&first->gpu[i], &info->gpu[i], sizeof first->gpu[i]);
}

/* Virtual functions have no processes: those are in their machines. */
static Ret list_into(const Found *found, int version, u32 *size, void *out)
{
    static ProcessInfoV3 info;
    u32 room = *size, count = 0;
    list_all();
    for (u32 i = 0; i < listed_count && found->mode != VF; i++)
        if (listed[i].slot == found->slot && !describe_process(i, &info) && count++ < room)
            put_process(version, out, count - 1, &info);
    *size = count > room && !script.long_lists ? room : count;
    return count > room && script.long_lists ? INSUFFICIENT_SIZE : SUCCESS;
}

API Ret mxSmlGetSingleGpuProcess(u32 index, u32 *size, ProcessInfo *out)
{
    ENTER_DEVICE(index);
    LEAVE(list_into(it, 1, size, out));
}

#ifndef WITHOUT_PROCESSES_V2
API Ret mxSmlGetSingleGpuProcess_v2(u32 index, u32 *size, ProcessInfoV2 *out)
{
    ENTER_DEVICE(index);
    LEAVE(list_into(it, 2, size, out));
}
#endif

#ifndef WITHOUT_PROCESSES_V3
API Ret mxSmlGetSingleGpuProcess_v3(u32 index, u32 *size, ProcessInfoV3 *out)
{
    ENTER_DEVICE(index);
    LEAVE(list_into(it, 3, size, out));
}
#endif

#endif

/* ---- slices ---- */

#ifndef WITHOUT_SGPU

/* A card of bare metal; slices and virtual functions exclude each other. */
static Ret enter_sliceable(const char *symbol, u32 index, const Found **found)
{
    Ret ret = enter_device(symbol, index, found);
    if (ret == SUCCESS && (*found)->mode != BARE)
        return NOT_SUPPORTED;
    if (ret == SUCCESS)
        read_hardware();
    return ret;
}

static Ret enter_slice(const char *symbol, u32 index, u32 id, const Found **found)
{
    Ret ret = enter_sliceable(symbol, index, found);
    if (ret == SUCCESS && (id >= SLICES || !hardware.card[(*found)->slot].slice[id].used))
        return NOT_SUPPORTED;
    return ret;
}

static Ret may_write(Ret entered)
{
    return entered == SUCCESS && script.read_only ? fail_with(SYSFS_WRITE_ERROR, EROFS) : entered;
}

#define ENTER_SLICEABLE(index) const Found *it = NULL; GO_ON(enter_sliceable(SYMBOL, index, &it))
#define ENTER_SLICE(index, id) const Found *it = NULL; GO_ON(enter_slice(SYMBOL, index, id, &it))
#define HARDWARE (&hardware.card[it->slot])
#define SLICE (&HARDWARE->slice[id])
/* What follows it is one change of the hardware, up to LEAVE_CHANGED. */
#define CHANGE() GO_ON(may_write(SUCCESS)); int lock = lock_hardware()
#define LEAVE_CHANGED(ret) return leave_changed(SYMBOL, lock, ret)

static Ret leave_changed(const char *symbol, int lock, Ret ret)
{
    int error = errno;
    if (ret == SUCCESS) {
        write_hardware();
        die_once(KILL_AFTER, symbol);
    }
    if (lock >= 0)
        close(lock);
    errno = error;
    return leave(ret);
}

static Ret busy(void)
{
    return script.ebusy ? fail_with(SYSFS_WRITE_ERROR, EBUSY) : BUSY_DEVICE;
}

static int in_use(u32 slot, u32 id)
{
    for (int i = 0; i < script.use_count; i++)
        if (script.uses[i].slot == slot && script.uses[i].sgpu == id)
            return 1;
    list_processes(script.cards);
    for (u32 i = 0; i < listed_count; i++)
        if (listed[i].slot == slot && listed[i].slice == (int)id)
            return 1;
    return 0;
}

static u32 count_slices(u32 slot)
{
    u32 count = 0;
    for (u32 id = 0; id < SLICES; id++)
        count += hardware.card[slot].slice[id].used;
    return count;
}

/* What is left for one more slice. */
static Quota quota_of(u32 slot)
{
    const Card *card = &script.card[slot];
    Quota left = {.total = card->quota ? card->quota : (u32)(card->memory / 1024), .compute = 100};
    u32 taken = card->astray, compute = 0;
    for (u32 id = 0; id < SLICES; id++)
        if (hardware.card[slot].slice[id].used) {
            taken += hardware.card[slot].slice[id].vram;
            compute += hardware.card[slot].slice[id].compute;
        }
    left.vram = taken < left.total ? left.total - taken : 0;
    left.compute = compute < 100 ? 100 - compute : 0;
    return left;
}

static u32 free_minor(void)
{
    for (u32 minor = hardware.minors;; minor++) {
        int taken = 0;
        for (u32 slot = 0; slot < SLOTS; slot++)
            for (u32 id = 0; id < SLICES; id++)
                taken |= hardware.card[slot].slice[id].used && hardware.card[slot].slice[id].minor == minor;
        if (!taken)
            return minor;
    }
}

API Ret mxSmlGetSgpuToggle(u32 index, u32 *out)
{
    ENTER_SLICEABLE(index);
    *out = HARDWARE->toggle;
    LEAVE(SUCCESS);
}

API Ret mxSmlSetSgpuToggle(u32 index, u32 toggle)
{
    ENTER_SLICEABLE(index);
    CHANGE();
    if (toggle > 1)
        LEAVE_CHANGED(fail_with(SYSFS_WRITE_ERROR, EINVAL));
    if (!toggle && count_slices(it->slot))
        LEAVE_CHANGED(busy());
    HARDWARE->toggle = toggle;
    LEAVE_CHANGED(SUCCESS);
}

API Ret mxSmlCreateSgpu(u32 index, u32 vram, u32 compute, u32 *out)
{
    ENTER_SLICEABLE(index);
    CHANGE();
    u32 id = 0;
    Quota left = quota_of(it->slot);
    while (id < SLICES && HARDWARE->slice[id].used)
        id++;
    if (!HARDWARE->toggle)
        LEAVE_CHANGED(NOT_SUPPORTED);
    if (!vram || vram % STEP || compute > 100)
        LEAVE_CHANGED(fail_with(SYSFS_WRITE_ERROR, EINVAL));
    if (id == SLICES || vram > left.vram || compute > left.compute)
        LEAVE_CHANGED(fail_with(SYSFS_WRITE_ERROR, ENOSPC));
    *SLICE = (Slice){1, (u32)hardware.next++, free_minor(), vram, compute, "", ""};
    *out = id;
    LEAVE_CHANGED(SUCCESS);
}

API Ret mxSmlRemoveSgpu(u32 index, u32 id)
{
    ENTER_SLICE(index, id);
    CHANGE();
    if (in_use(it->slot, id))
        LEAVE_CHANGED(busy());
    SLICE->used = 0;
    LEAVE_CHANGED(SUCCESS);
}

/* Every error is 0 slices. */
API u32 mxSmlGetSgpuCount(u32 index)
{
    const Found *it = NULL;
    u32 count = enter_sliceable(SYMBOL, index, &it) == SUCCESS ? count_slices(it->slot) : 0;
    return leave(count);
}

API Ret mxSmlGetSgpuInfo(u32 index, u32 id, SgpuInfo *out)
{
    ENTER_SLICE(index, id);
    *out = (SgpuInfo){.parent = index, .id = id, .vram = SLICE->vram, .sw_priority = 1, .compute = SLICE->compute,
                      .minor = SLICE->minor};
    uuid_of_slice(it->slot, id, out->uuid);
    LEAVE(SUCCESS);
}

API Ret mxSmlGetSgpuAvailableQuota(u32 index, Quota *out)
{
    ENTER_SLICEABLE(index);
    *out = quota_of(it->slot);
    LEAVE(SUCCESS);
}

API Ret mxSmlGetDeviceSchedClass(u32 index, u32 *out)
{
    ENTER_SLICEABLE(index);
    *out = HARDWARE->sched_class;
    LEAVE(SUCCESS);
}

/* That slices which lie there forbid it is our assumption: MetaX has not published it. */
API Ret mxSmlSetDeviceSchedClass(u32 index, u32 sched_class)
{
    ENTER_SLICEABLE(index);
    CHANGE();
    if (sched_class > 2)
        LEAVE_CHANGED(fail_with(SYSFS_WRITE_ERROR, EINVAL));
    if (sched_class != HARDWARE->sched_class && count_slices(it->slot))
        LEAVE_CHANGED(busy());
    HARDWARE->sched_class = sched_class;
    LEAVE_CHANGED(SUCCESS);
}

API Ret mxSmlGetSgpuAlias(u32 index, u32 id, char *out, u32 *size)
{
    ENTER_SLICE(index, id);
    LEAVE(put_text(out, size, SLICE->alias));
}

API Ret mxSmlSetSgpuAlias(u32 index, u32 id, const char *alias)
{
    ENTER_SLICE(index, id);
    CHANGE();
    if (strlen(alias) >= sizeof SLICE->alias)
        LEAVE_CHANGED(fail_with(SYSFS_WRITE_ERROR, EINVAL));
    strcpy(SLICE->alias, alias);
    LEAVE_CHANGED(SUCCESS);
}

API Ret mxSmlGetSgpuAnnotationsId(u32 index, u32 id, char *out, u32 *size)
{
    ENTER_SLICE(index, id);
    LEAVE(put_text(out, size, SLICE->annotations));
}

#ifndef WITHOUT_USAGE

API Ret mxSmlGetSgpuUsage(u32 index, u32 id, int *out)
{
    ENTER_SLICE(index, id);
    *out = (int)CARD->slice_usage[id];
    LEAVE(SUCCESS);
}

/* What processes use of the slice. */
API Ret mxSmlGetSgpuMemory(u32 index, u32 id, SgpuMemory *out)
{
    ENTER_SLICE(index, id);
    list_processes(script.cards);
    *out = (SgpuMemory){.total = (long)SLICE->vram << 20};
    for (u32 i = 0; i < listed_count; i++)
        if (listed[i].slot == it->slot && listed[i].slice == (int)id)
            out->used += (long)listed[i].memory;
    out->free = out->total - out->used;
    LEAVE(SUCCESS);
}

#endif

#endif

/* ---- events ---- */

#ifndef WITHOUT_EVENTS

static u64 newest_event(void)
{
    u64 newest = 0;
    for (int i = 0; i < script.event_count; i++)
        if (script.events[i].seq > newest)
            newest = script.events[i].seq;
    return newest;
}

/* One for the process: there are not many to have. */
static int news = -1;
static int is_watched;
static pthread_cond_t heard = PTHREAD_COND_INITIALIZER;
static EventSet sets[SETS];
static u64 sets_made;

static void watch_control(void)
{
    char folder[PATH_ROOM];
    char *slash = strrchr(strcpy(folder, control), '/');
    if (slash != NULL)
        *slash = 0;
    if (news < 0)
        news = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (news >= 0)
        inotify_add_watch(news, slash == NULL ? "." : folder, IN_MOVED_TO);
}

/* Called with the mutex held, which is free meanwhile. Of those that wait, one watches for all. */
static void await_news(void)
{
    char buffer[4096];
    if (is_watched) {
        pthread_cond_wait(&heard, &mutex);
        return;
    }
    struct pollfd watched = {.fd = news, .events = POLLIN, .revents = 0};
    is_watched = 1;
    pthread_mutex_unlock(&mutex);
    if (poll(&watched, 1, 1000) > 0)
        while (read(news, buffer, sizeof buffer) > 0)
            ;
    pthread_mutex_lock(&mutex);
    is_watched = 0;
    pthread_cond_broadcast(&heard);
}

static int is_set(const EventSet *set)
{
    return set >= sets && set < sets + SETS && set->used && set->look == look;
}

API Ret mxSmlEventSetCreate(EventSet **out)
{
    ENTER();
    for (EventSet *set = sets; set < sets + SETS; set++) {
        if (is_set(set))
            continue;
        *set = (EventSet){.used = 1, .taken = newest_event(), .look = look, .serial = ++sets_made};
        watch_control();
        *out = set;
        LEAVE(SUCCESS);
    }
    LEAVE(BUSY_DEVICE);
}

/* A set is of one device. */
API Ret mxSmlDeviceRegisterEvents(u32 index, u64 types, EventSet *set)
{
    ENTER_DEVICE(index);
    if (types != EID || !is_set(set) || set->registered)
        LEAVE(INVALID_INPUT);
    set->registered = 1;
    set->slot = it->slot;
    set->index = index;
    LEAVE(SUCCESS);
}

static int take_event(EventSet *set, EventInfo *out)
{
    for (int i = 0; i < script.event_count; i++) {
        const Event *event = &script.events[i];
        if (event->seq <= set->taken || event->slot != set->slot)
            continue;
        set->taken = event->seq;
        memset(out, 0, sizeof *out);
        out->device = (int)set->index;
        out->type = event->type;
        strcpy(out->data, event->data);
        return 1;
    }
    return 0;
}

/* There is no time limit: it returns with an event, or with what the script lets it fail with. */
API Ret mxSmlEventSetWait(EventSet *set, EventInfo *out)
{
    ENTER();
    u64 mine = set->serial;
    while (is_set(set) && set->serial == mine && set->registered) {
        refresh();
        const Rule *fail = find_rule(FAIL, SYMBOL, (int)set->slot);
        if (fail != NULL)
            LEAVE(fail_with((Ret)fail->value, fail->error));
        if (take_event(set, out))
            LEAVE(SUCCESS);
        await_news();
    }
    LEAVE(FAILURE);
}

API Ret mxSmlEventSetFree(EventSet *set)
{
    ENTER();
    if (!is_set(set))
        LEAVE(FAILURE);
    set->used = 0;
    LEAVE(SUCCESS);
}

#endif

/* ---- of the stub itself ---- */

#define SIZE_OF(kind) if (strcmp(name, #kind) == 0) return sizeof(kind)

API size_t mxsml_stub_sizeof(const char *name)
{
    SIZE_OF(DeviceInfo);
    SIZE_OF(DeviceIds);
    SIZE_OF(MemoryInfo);
    SIZE_OF(Unavailable);
    SIZE_OF(Ecc);
    SIZE_OF(PciEvent);
    SIZE_OF(Remote);
    SIZE_OF(DieRemote);
    SIZE_OF(SgpuInfo);
    SIZE_OF(Quota);
    SIZE_OF(EventInfo);
    SIZE_OF(SgpuMemory);
    SIZE_OF(BoardPower);
    SIZE_OF(ProcessGpu);
    SIZE_OF(ProcessGpuV2);
    SIZE_OF(ProcessGpuV3);
    SIZE_OF(ProcessInfo);
    SIZE_OF(ProcessInfoV2);
    SIZE_OF(ProcessInfoV3);
    return 0;
}

/* A libefml.so for machines without Enflame hardware: EFML's binary interface, scripted through a text file.
 *
 * The environment variable XPU_EFML_STUB names the control file. Besides the lines of ../../stub/control.h and
 * ../../stub/processes.h it has those below. A card is named by its slot, which never changes; SYMBOL is the function's name as Enflame gives it, also in a
 * build with another prefix. Functions of both families (Efml by index, efml by handle) tell of the same cards:
 *
 *   cards N                     slots 0..N-1 hold a card (at most 64; 8 without this line)
 *   order S S ...               the slots in the order in which the index family finds them
 *   handleorder S S ...         the same of the handle family
 *   remove I                    slot I is empty
 *   count N                     what the index family answers for the count, whatever it finds
 *   uuid I TEXT, serial I TEXT, name I TEXT, sku I TEXT, arch I TEXT     what the card says of itself
 *   bdf I DOMAIN:BUS:DEVICE.FUNCTION
 *   logic I N                   N of enflame/gcuN in sysfs
 *   numa I N                    -1 for none
 *   virt I N                    EfmlGetGcuVirtStatus
 *   memory I BYTES MIB          in all, and in use
 *   usage I PERCENT
 *   memoryusage I PERCENT       of the time in which memory was in use
 *   draw I LIMIT WATTS          the card's power
 *   clocks I SIP MEMORY         MHz
 *   processunit BYTES           EfmlGetProcessInfo counts in this unit; 1 without this line
 *   sampled TIME                when the use of processes was measured; now without this line
 *   health I N                  what the library takes the card for
 *   power I MODE                EfmlGetPowerMode
 *   ecc I ENABLED PENDING BLACKLIST SINGLE DOUBLE
 *   rma I SUPPORTED FLAG DOUBLE
 *   link I SPEED MAX WIDTH MAX
 *   temperature I CHIP MEMORY BOARD
 *   record I EVENT RESET SOURCE TIME     an error that the card remembers
 *   port I N J                  LARE port N of the card leads to card J
 *   event SEQ I ID TYPE TEXT    an event, once for every process that started the index family before the line came
 *   access TEXT                 the driver's access point
 *   driver TEXT                 the driver's version
 *   raise N                     loading the library raises signal N
 *   signal N ignore|handle      starting a family changes what the process does about signal N
 *
 * Two calls that are inside at once write a line "overlap" to <control file>.trace.
 *
 * Built with -DWITHOUT_INDICES or -DWITHOUT_HANDLES it lacks that family, with -DWITHOUT_NEWER what came after the
 * header of 2019 (the handle family included), with -DWITHOUT_RUNNING the processes of the handle family, with
 * -DWITHOUT_PROCESSES those of both, with -DWITHOUT_SUFFIXES the handle family has its older names alone, and
 * with -DPREFIXED_ERML the functions are called Erml and erml.
 */
#define STUB "efml"
#define ENVIRONMENT "XPU_EFML_STUB"
#include "../../stub/control.h"

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>

#ifdef WITHOUT_NEWER
#define WITHOUT_HANDLES
#endif
#ifdef PREFIXED_ERML
#define BY_INDEX(name) Erml##name
#define BY_HANDLE(name) erml##name
#else
#define BY_INDEX(name) Efml##name
#define BY_HANDLE(name) efml##name
#endif

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { PORT_NUMBER = 7, INVALID_INPUT = 8, NO_DEVICE = 12, TIMEOUT = 253 };
enum { NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GCU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25 };
enum { SLOTS = 64, PORTS = 8, EVENTS = 256, RECORDS = 256, MAX_PROCESSES = 64 };
enum { SIGNALS = 65, TEXT = 128 };
enum { VENDOR = 0x1e36, DEVICE = 0xc035 };

typedef int Ret;
typedef uint32_t u32;
typedef uint64_t u64;

typedef struct { char name[128]; u32 vendor, device, domain, bus, dev, func, logic; } DeviceInfo;
typedef struct { u64 total; u32 used; } MemInfo;
typedef struct { u32 id; int type; char message[128]; } Event;
typedef struct { bool enabled, pending, blacklist; u32 single, twice; } EccStatus;
typedef struct { bool supported, flag; } RmaStatus;
typedef struct { bool supported, flag; u32 twice; } RmaDetails;
typedef struct { float capability, current; } Power;
typedef struct { float asic, memory, board; } Thermal;
typedef struct { int speed, max_speed, width, max_width; } LinkInfo;
typedef struct { u32 vendor, device, domain, bus, dev, func, port; int type; } PortEnd;
typedef struct { u32 connected; char uuid[16]; PortEnd near; u32 remote_card; char remote_uuid[16]; PortEnd far; }
    LarePortInfo;
typedef struct { u32 pid; u64 device_memory, system_memory; } ProcessInfo;
typedef struct { unsigned long long event; int reset, source; unsigned long long time; unsigned int bdf; } ErrorRecord;
typedef struct { unsigned long long total, free, used; } DeviceMemory;
typedef struct { unsigned int version; unsigned long long total, free, used, reserved; } DeviceMemoryV2;
typedef struct { unsigned int domain, bus, dev, func, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { unsigned int gcu, memory; } Utilization;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gcu_instance, compute_instance; } RunningProcess;
typedef struct { unsigned int pid; unsigned long long time; unsigned int sip, memory, encoder, decoder; } UtilizationSample;

_Static_assert(sizeof(bool) == 1, "bool");
_Static_assert(sizeof(DeviceInfo) == 156 && offsetof(DeviceInfo, domain) == 136, "efmlDeviceInfo_t");
_Static_assert(offsetof(DeviceInfo, logic) == 152, "efmlDeviceInfo_t");
_Static_assert(sizeof(MemInfo) == 16 && offsetof(MemInfo, used) == 8, "efmlDevMemInfo_t");
_Static_assert(sizeof(Event) == 136 && offsetof(Event, message) == 8, "efmlEvent_t");
_Static_assert(sizeof(EccStatus) == 12 && offsetof(EccStatus, single) == 4, "efmlEccStatus_t");
_Static_assert(sizeof(RmaStatus) == 2, "efmlRmaStatus_t");
_Static_assert(sizeof(RmaDetails) == 8 && offsetof(RmaDetails, twice) == 4, "efmlRmaDetails_t");
_Static_assert(sizeof(Power) == 8, "efmlDevPowerInfo_t");
_Static_assert(sizeof(Thermal) == 12, "efmlDevThermalInfoV2_t");
_Static_assert(sizeof(LinkInfo) == 16, "efmlPcieLinkInfo_t");
_Static_assert(sizeof(LarePortInfo) == 104 && offsetof(LarePortInfo, near) == 20, "efmlGcuLarePortInfo_t");
_Static_assert(offsetof(LarePortInfo, remote_card) == 52 && offsetof(LarePortInfo, far) == 72, "efmlGcuLarePortInfo_t");
_Static_assert(sizeof(ProcessInfo) == 24 && offsetof(ProcessInfo, device_memory) == 8, "efmlProcessInfo_t");
_Static_assert(sizeof(ErrorRecord) == 32 && offsetof(ErrorRecord, bdf) == 24, "efmlErrorRecord_t");
_Static_assert(sizeof(DeviceMemory) == 24, "efmlMemory_t");
_Static_assert(sizeof(DeviceMemoryV2) == 40 && offsetof(DeviceMemoryV2, total) == 8, "efmlMemory_v2_t");
_Static_assert(sizeof(PciInfo) == 56 && offsetof(PciInfo, bus_id) == 24, "efmlPciInfo_t");
_Static_assert(sizeof(Utilization) == 8, "efmlUtilization_t");
_Static_assert(sizeof(RunningProcess) == 24 && offsetof(RunningProcess, memory) == 8, "efmlProcessInfo_v1_t");
_Static_assert(sizeof(UtilizationSample) == 32 && offsetof(UtilizationSample, sip) == 16, "efmlProcessUtilizationSample_t");

#include "../../stub/processes.h"

typedef struct { u64 seq; u32 slot; Event event; } SlotEvent;
typedef struct { u32 slot; ErrorRecord record; } SlotRecord;
typedef struct {
    int removed, healthy, numa, virt, power, port[PORTS];
    u32 logic, used, domain, bus, dev, func;
    u64 memory;
    float usage, limit, drawn;
    u32 memory_usage, sip_clock, memory_clock;
    char uuid[TEXT], serial[TEXT], name[TEXT], sku[TEXT], arch[TEXT];
    EccStatus ecc;
    RmaDetails rma;
    LinkInfo link;
    Thermal temperature;
} Card;
/* The slots in the order of a family, as many as were there when it last started. */
typedef struct { int started; u32 count, slot[SLOTS]; } Found;

static struct {
    u32 cards, order[SLOTS], handle_order[SLOTS];
    int count, raised, event_count, record_count;
    u64 process_unit, sampled;
    char signals[SIGNALS], access[TEXT], driver[TEXT];
    Card card[SLOTS];
    SlotEvent events[EVENTS];
    SlotRecord records[RECORDS];
} script;

static int inside;

/* ---- the control file ---- */

static void reset_card(u32 slot)
{
    Card *card = &script.card[slot];
    card->healthy = card->power = 1;
    card->numa = (int)slot / 4;
    card->logic = slot;
    card->bus = 0x20 + slot;
    card->memory = 42976ULL << 20;
    card->used = 1129;
    card->ecc = (EccStatus){.enabled = true};
    card->rma = (RmaDetails){.supported = true};
    card->link = (LinkInfo){5, 5, 16, 16};
    card->temperature = (Thermal){36, 38, 34};
    card->limit = 300;
    card->drawn = 105;
    card->sip_clock = 1450;
    card->memory_clock = 1600;
    snprintf(card->uuid, TEXT, "TR6Y460%05u", slot);
    snprintf(card->serial, TEXT, "A018K305%05u", slot);
    strcpy(card->name, "S60");
    strcpy(card->sku, "S60");
    strcpy(card->arch, "GCU300");
    for (int port = 0; port < PORTS; port++)
        card->port[port] = NOBODY;
}

static void reset_script(void)
{
    memset(&script, 0, sizeof script);
    script.cards = 8;
    script.count = NOBODY;
    script.process_unit = 1;
    reset_processes();
    strcpy(script.access, "/sys/bus/pci/devices/");
    strcpy(script.driver, "1.4.3.4");
    for (u32 slot = 0; slot < SLOTS; slot++) {
        script.order[slot] = script.handle_order[slot] = slot;
        reset_card(slot);
    }
}

static void complete_script(void) {}

static int parse_text(const char *line)
{
    u32 slot;
    char verb[16], text[TEXT] = "";
    if (sscanf(line, "%15s %u %127[^\n]", verb, &slot, text) < 2 || slot >= SLOTS)
        return 0;
    Card *card = &script.card[slot];
    if (strcmp(verb, "uuid") == 0)
        strcpy(card->uuid, text);
    else if (strcmp(verb, "serial") == 0)
        strcpy(card->serial, text);
    else if (strcmp(verb, "name") == 0)
        strcpy(card->name, text);
    else if (strcmp(verb, "sku") == 0)
        strcpy(card->sku, text);
    else if (strcmp(verb, "arch") == 0)
        strcpy(card->arch, text);
    else
        return 0;
    return 1;
}

static int parse_numbers(const char *line)
{
    u32 slot;
    char verb[16];
    u64 n[5] = {0};
    int found = sscanf(line, "%15s %u %lu %lu %lu %lu %lu", verb, &slot, &n[0], &n[1], &n[2], &n[3], &n[4]) - 2;
    if (found < 0 || slot >= SLOTS)
        return 0;
    Card *card = &script.card[slot];
    if (strcmp(verb, "remove") == 0)
        card->removed = 1;
    else if (strcmp(verb, "logic") == 0 && found == 1)
        card->logic = (u32)n[0];
    else if (strcmp(verb, "numa") == 0 && found == 1)
        card->numa = (int)n[0];
    else if (strcmp(verb, "virt") == 0 && found == 1)
        card->virt = (int)n[0];
    else if (strcmp(verb, "health") == 0 && found == 1)
        card->healthy = (int)n[0];
    else if (strcmp(verb, "power") == 0 && found == 1)
        card->power = (int)n[0];
    else if (strcmp(verb, "memory") == 0 && found == 2) {
        card->memory = n[0];
        card->used = (u32)n[1];
    } else if (strcmp(verb, "ecc") == 0 && found == 5)
        card->ecc = (EccStatus){n[0], n[1], n[2], (u32)n[3], (u32)n[4]};
    else if (strcmp(verb, "rma") == 0 && found == 3)
        card->rma = (RmaDetails){n[0], n[1], (u32)n[2]};
    else if (strcmp(verb, "link") == 0 && found == 4)
        card->link = (LinkInfo){(int)n[0], (int)n[1], (int)n[2], (int)n[3]};
    else if (strcmp(verb, "port") == 0 && found == 2 && n[0] < PORTS)
        card->port[n[0]] = n[1] < SLOTS ? (int)n[1] : NOBODY;
    else
        return 0;
    return 1;
}

static int parse_measured(const char *line)
{
    u32 slot;
    Card it;
    Thermal *heat = &it.temperature;
    if (sscanf(line, "usage %u %f", &slot, &it.usage) == 2 && slot < SLOTS)
        script.card[slot].usage = it.usage;
    else if (sscanf(line, "draw %u %f %f", &slot, &it.limit, &it.drawn) == 3 && slot < SLOTS) {
        script.card[slot].limit = it.limit;
        script.card[slot].drawn = it.drawn;
    } else if (sscanf(line, "clocks %u %u %u", &slot, &it.sip_clock, &it.memory_clock) == 3 && slot < SLOTS) {
        script.card[slot].sip_clock = it.sip_clock;
        script.card[slot].memory_clock = it.memory_clock;
    } else if (sscanf(line, "memoryusage %u %u", &slot, &it.memory_usage) == 2 && slot < SLOTS)
        script.card[slot].memory_usage = it.memory_usage;
    else if (sscanf(line, "temperature %u %f %f %f", &slot, &heat->asic, &heat->memory, &heat->board) == 4
             && slot < SLOTS)
        script.card[slot].temperature = *heat;
    else if (sscanf(line, "bdf %u %x:%x:%x.%x", &slot, &it.domain, &it.bus, &it.dev, &it.func) == 5 && slot < SLOTS) {
        Card *card = &script.card[slot];
        card->domain = it.domain;
        card->bus = it.bus;
        card->dev = it.dev;
        card->func = it.func;
    } else
        return 0;
    return 1;
}

static int parse_happening(const char *line)
{
    SlotEvent it = {0};
    SlotRecord record = {0};
    ErrorRecord *error = &record.record;
    if (sscanf(line, "event %lu %u %u %d %127[^\n]", &it.seq, &it.slot, &it.event.id, &it.event.type, it.event.message)
        >= 4) {
        if (script.event_count < EVENTS)
            script.events[script.event_count++] = it;
    } else if (sscanf(line, "record %u %llu %d %d %llu", &record.slot, &error->event, &error->reset, &error->source,
                      &error->time) == 5) {
        if (script.record_count < RECORDS)
            script.records[script.record_count++] = record;
    } else
        return 0;
    return 1;
}

static int parse_node(const char *line)
{
    u32 number;
    char what[8];
    if (sscanf(line, "cards %u", &number) == 1)
        script.cards = number <= SLOTS ? number : SLOTS;
    else if (sscanf(line, "count %u", &number) == 1)
        script.count = (int)number;
    else if (sscanf(line, "processunit %lu", &script.process_unit) == 1 || sscanf(line, "sampled %lu", &script.sampled) == 1)
        return 1;
    else if (sscanf(line, "raise %u", &number) == 1)
        script.raised = (int)number;
    else if (sscanf(line, "signal %u %7s", &number, what) == 2 && number < SIGNALS)
        script.signals[number] = what[0];
    else
        return sscanf(line, "access %127[^\n]", script.access) == 1
            || sscanf(line, "driver %127[^\n]", script.driver) == 1;
    return 1;
}

static int parse_line(const char *line)
{
    return parse_node(line) || parse_slots(line, "order ", script.order, SLOTS)
        || parse_slots(line, "handleorder ", script.handle_order, SLOTS) || parse_happening(line)
        || parse_measured(line) || parse_process(line) || parse_numbers(line) || parse_text(line);
}

/* ---- calls ---- */

/* Enflame's name of a function that may have another prefix here. */
static const char *named(const char *function)
{
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "%cfml%.50s", function[0], function + 4);
    return name;
}

static int is_present(u32 slot)
{
    return slot < script.cards && !script.card[slot].removed;
}

/* UUIDs are the library's, or have GCU- before them as Enflame's exporter writes them. */
static int has_uuid(unsigned slot, const char *uuid, int *slice)
{
    (void)slice;
    return strcmp(script.card[slot].uuid, strncmp(uuid, "GCU-", 4) ? uuid : uuid + 4) == 0;
}

static void look_for_cards(Found *found, const u32 order[SLOTS])
{
    *found = (Found){.started = 1};
    for (u32 place = 0; place < SLOTS; place++)
        if (is_present(order[place]))
            found->slot[found->count++] = order[place];
}

static void enter_library(void)
{
    if (__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&mutex);
        trace("overlap");
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_lock(&mutex);
}

static Ret leave(Ret ret)
{
    pthread_mutex_unlock(&mutex);
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
    return ret;
}

static Ret enter(const char *function, const Found *found)
{
    enter_library();
    const Rule *fail = scripted(named(function), NOBODY);
    return fail != NULL ? (Ret)fail->value : found->started ? SUCCESS : UNINITIALIZED;
}

static void on_signal(int number)
{
    (void)number;
}

static Ret start(const char *function, Found *found, const u32 order[SLOTS])
{
    enter_library();
    name_control();
    const Rule *fail = scripted(named(function), NOBODY);
    for (int number = 1; number < SIGNALS; number++)
        if (script.signals[number])
            signal(number, script.signals[number] == 'i' ? SIG_IGN : on_signal);
    found->started = 0;
    if (fail == NULL)
        look_for_cards(found, order);
    return fail == NULL ? SUCCESS : (Ret)fail->value;
}

__attribute__((constructor)) static void on_load(void)
{
    pthread_mutex_lock(&mutex);
    name_control();
    refresh();
    int raised = script.raised;
    pthread_mutex_unlock(&mutex);
    if (raised)
        raise(raised);
}

/* The mutex is held from here to LEAVE. */
#define GO_ON(entered) do { Ret ret_ = entered; if (ret_ != SUCCESS) return leave(ret_); } while (0)
#define LEAVE(ret) return leave(ret)
#define CARD (&script.card[slot])

#ifndef WITHOUT_INDICES

/* ---- the index family: the library ---- */

static Found by_index;
/* The newest event that each card, and EfmlGetEvent, told this process. */
static u64 taken[SLOTS], taken_of_any;

static u64 newest_event(void)
{
    u64 newest = 0;
    for (int i = 0; i < script.event_count; i++)
        if (script.events[i].seq > newest)
            newest = script.events[i].seq;
    return newest;
}

API Ret BY_INDEX(Init)(bool no_driver)
{
    Ret ret = start(__func__, &by_index, script.order);
    taken_of_any = newest_event();
    for (u32 slot = 0; slot < SLOTS; slot++)
        taken[slot] = taken_of_any;
    LEAVE(ret == SUCCESS && no_driver ? INVALID_INPUT : ret);
}

API void BY_INDEX(Shutdown)(void)
{
    enter(__func__, &by_index);
    by_index.started = 0;
    leave(SUCCESS);
}

API Ret BY_INDEX(ErrorString)(Ret code, char *out)
{
    switch (code) {
    case SUCCESS: strcpy(out, "Success"); break;
    case UNINITIALIZED: strcpy(out, "Error since uninitialized"); break;
    case NOT_SUPPORTED: strcpy(out, "Error, not supported"); break;
    case NO_DEVICE: strcpy(out, "Error, no device"); break;
    default: return INVALID_INPUT;
    }
    return SUCCESS;
}

API Ret BY_INDEX(GetDriverVer)(char *out)
{
    GO_ON(enter(__func__, &by_index));
    strcpy(out, script.driver);
    LEAVE(SUCCESS);
}

API Ret BY_INDEX(GetLibVer)(char *out) { GO_ON(enter(__func__, &by_index)); strcpy(out, "1.23.0"); LEAVE(SUCCESS); }
API Ret BY_INDEX(GetDriverAccessPoint)(char *out)
{
    GO_ON(enter(__func__, &by_index));
    strcpy(out, script.access);
    LEAVE(SUCCESS);
}

API Ret BY_INDEX(GetDevCount)(u32 *out)
{
    GO_ON(enter(__func__, &by_index));
    *out = script.count == NOBODY ? by_index.count : (u32)script.count;
    LEAVE(SUCCESS);
}

/* ---- the index family: cards ---- */

/* That a card which went away since the library looked is NO_DEVICE is our assumption. */
static Ret enter_card(const char *function, u32 index, u32 *slot)
{
    enter_library();
    int is_known = by_index.started && index < by_index.count;
    *slot = is_known ? by_index.slot[index] : 0;
    const Rule *fail = scripted(named(function), is_known ? (int)*slot : NOBODY);
    if (fail != NULL)
        return (Ret)fail->value;
    if (!by_index.started)
        return UNINITIALIZED;
    return !is_known ? INVALID_ARGUMENT : is_present(*slot) ? SUCCESS : NO_DEVICE;
}

#define TELLS(name, kind, ...) \
    API Ret BY_INDEX(name)(u32 index, kind *out) \
    { \
        u32 slot; \
        GO_ON(enter_card(__func__, index, &slot)); \
        __VA_ARGS__; \
        LEAVE(SUCCESS); \
    }

static DeviceInfo info_of(u32 slot)
{
    const Card *card = &script.card[slot];
    DeviceInfo it = {.vendor = VENDOR, .device = DEVICE, .domain = card->domain, .bus = card->bus, .dev = card->dev,
                     .func = card->func, .logic = card->logic};
    strcpy(it.name, card->name);
    return it;
}

TELLS(GetDevInfo, DeviceInfo, *out = info_of(slot))
TELLS(GetDevUuid, char, strcpy(out, CARD->uuid))
TELLS(GetDevSn, char, strcpy(out, CARD->serial))
TELLS(GetDevPn, char, strcpy(out, "EFB-0088000-00"))
TELLS(GetDevSKU, char, strcpy(out, CARD->sku))
TELLS(GetDevSlotOamName, char, snprintf(out, TEXT, "slot %u", slot))
TELLS(GetFwVersion, char, strcpy(out, "33.6.5"))
TELLS(GetDevLogicId, u32, *out = CARD->logic)
TELLS(GetDevMem, MemInfo, *out = ((MemInfo){CARD->memory, CARD->used}))
TELLS(GetDevDtuUsage, float, *out = CARD->usage)
TELLS(GetDevDtuUsageAsync, float, *out = CARD->usage)
TELLS(GetDevPwr, Power, *out = ((Power){CARD->limit, CARD->drawn}))
TELLS(GetDevTemp, Thermal, *out = CARD->temperature)
TELLS(GetDevHealth, bool, *out = CARD->healthy)
TELLS(GetDevEccStatus, EccStatus, *out = CARD->ecc)
TELLS(GetDevRmaStatus, RmaStatus, *out = ((RmaStatus){CARD->rma.supported, CARD->rma.flag}))
TELLS(GetDevRmaDetails, RmaDetails, *out = CARD->rma)
TELLS(GetPcieLinkInfo, LinkInfo, *out = CARD->link)

#ifndef WITHOUT_PROCESSES
/* That the count is also of those for which the array has no room is our assumption. */
API Ret BY_INDEX(GetProcessInfo)(u32 index, u32 *count, ProcessInfo *out)
{
    u32 slot;
    GO_ON(enter_card(__func__, index, &slot));
    *count = 0;
    list_processes(script.cards);
    for (u32 i = 0; i < listed_count; i++)
        if (listed[i].slot == slot && (*count)++ < MAX_PROCESSES)
            out[*count - 1] = (ProcessInfo){listed[i].pid, listed[i].memory / script.process_unit, 0};
    LEAVE(SUCCESS);
}
#endif

static Ret port_count(const char *function, u32 index, u32 *out)
{
    u32 slot;
    GO_ON(enter_card(function, index, &slot));
    *out = PORTS;
    LEAVE(SUCCESS);
}

static Ret port_info(const char *function, u32 index, u32 port, LarePortInfo *out)
{
    u32 slot;
    GO_ON(enter_card(function, index, &slot));
    if (port >= PORTS)
        LEAVE(PORT_NUMBER);
    int peer = CARD->port[port];
    memset(out, 0, sizeof *out);
    out->connected = peer != NOBODY && is_present((u32)peer);
    if (out->connected) {
        const Card *card = &script.card[peer];
        out->far = (PortEnd){VENDOR, DEVICE, card->domain, card->bus, card->dev, card->func, port, 1};
    }
    LEAVE(SUCCESS);
}

API Ret BY_INDEX(GetEslPortNum)(u32 index, u32 *out) { return port_count(__func__, index, out); }
API Ret BY_INDEX(GetEslPortInfo)(u32 index, u32 port, LarePortInfo *out)
{
    return port_info(__func__, index, port, out);
}

/* ---- the index family: events ---- */

static int take_event(int of, u64 *newest, Event *out)
{
    for (int i = 0; i < script.event_count; i++) {
        const SlotEvent *it = &script.events[i];
        if (it->seq <= *newest || (of != NOBODY && it->slot != (u32)of))
            continue;
        *newest = it->seq;
        *out = it->event;
        return 1;
    }
    return 0;
}

API Ret BY_INDEX(GetEvent)(int timeout_ms, Event *out)
{
    GO_ON(enter(__func__, &by_index));
    for (int waited = 0; !take_event(NOBODY, &taken_of_any, out); waited++) {
        if (timeout_ms >= 0 && waited >= timeout_ms)
            LEAVE(TIMEOUT);
        pthread_mutex_unlock(&mutex);
        usleep(1000);
        pthread_mutex_lock(&mutex);
        refresh();
    }
    LEAVE(SUCCESS);
}

#ifndef WITHOUT_NEWER

/* That TIMEOUT says that there is no event is our assumption. */
API Ret BY_INDEX(GetEventV2)(u32 index, Event *out)
{
    u32 slot;
    GO_ON(enter_card(__func__, index, &slot));
    LEAVE(take_event((int)slot, &taken[slot], out) ? SUCCESS : TIMEOUT);
}

API Ret BY_INDEX(GetErrorRecords)(u32 index, u32 room, ErrorRecord *out, u32 *total)
{
    u32 slot;
    GO_ON(enter_card(__func__, index, &slot));
    *total = 0;
    for (int i = 0; i < script.record_count; i++)
        if (script.records[i].slot == slot && (*total)++ < room)
            out[*total - 1] = script.records[i].record;
    LEAVE(SUCCESS);
}

TELLS(GetHwArchName, char, strcpy(out, CARD->arch))
TELLS(GetNumaNode, int, *out = CARD->numa)
TELLS(GetGcuVirtStatus, int, *out = CARD->virt)
TELLS(GetDevTempV2, Thermal, *out = CARD->temperature)
TELLS(GetPowerMode, int, *out = CARD->power)
TELLS(GetMemClk, u32, *out = CARD->memory_clock)
TELLS(GetDevIsHealth, bool, *out = CARD->healthy)

API Ret BY_INDEX(GetGcuLarePortNum)(u32 index, u32 *out) { return port_count(__func__, index, out); }
API Ret BY_INDEX(GetGcuLarePortInfo)(u32 index, u32 port, LarePortInfo *out)
{
    return port_info(__func__, index, port, out);
}

#endif
#endif

#ifndef WITHOUT_HANDLES

/* ---- the handle family ---- */

typedef struct { u32 slot; } Gcu;
static Found by_handle;
static Gcu gcus[SLOTS];

#ifdef WITHOUT_SUFFIXES
#define SUFFIXED(name, suffix) BY_HANDLE(name)
#else
#define SUFFIXED(name, suffix) BY_HANDLE(name##suffix)
API Ret BY_HANDLE(Init_v2)(void) { Ret ret = start(__func__, &by_handle, script.handle_order); LEAVE(ret); }
#endif
API Ret BY_HANDLE(Init)(void) { Ret ret = start(__func__, &by_handle, script.handle_order); LEAVE(ret); }

API Ret BY_HANDLE(Shutdown)(void)
{
    GO_ON(enter(__func__, &by_handle));
    by_handle.started = 0;
    LEAVE(SUCCESS);
}

API const char *BY_HANDLE(ErrorString)(Ret code)
{
    return code == GCU_IS_LOST ? "GCU is lost" : code == 9 ? "Driver is not loaded" : NULL;
}

API Ret SUFFIXED(DeviceGetCount, _v2)(unsigned int *out)
{
    GO_ON(enter(__func__, &by_handle));
    *out = by_handle.count;
    LEAVE(SUCCESS);
}

static Ret give_handle(u32 slot, Gcu **out)
{
    if (!is_present(slot))
        return NOT_FOUND;
    gcus[slot].slot = slot;
    *out = &gcus[slot];
    return SUCCESS;
}

API Ret SUFFIXED(DeviceGetHandleByIndex, _v2)(unsigned int index, Gcu **out)
{
    GO_ON(enter(__func__, &by_handle));
    LEAVE(index < by_handle.count ? give_handle(by_handle.slot[index], out) : INVALID_ARGUMENT);
}

API Ret SUFFIXED(DeviceGetHandleByPciBusId, _v2)(const char *bus_id, Gcu **out)
{
    u32 domain, bus, dev, func;
    GO_ON(enter(__func__, &by_handle));
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &dev, &func) != 4)
        LEAVE(INVALID_ARGUMENT);
    for (u32 place = 0; place < by_handle.count; place++) {
        const Card *card = &script.card[by_handle.slot[place]];
        if (card->domain == domain && card->bus == bus && card->dev == dev && card->func == func)
            LEAVE(give_handle(by_handle.slot[place], out));
    }
    LEAVE(NOT_FOUND);
}

static Ret enter_handle(const char *function, const Gcu *gcu, u32 *slot)
{
    int is_known = gcu >= gcus && gcu < gcus + SLOTS;
    enter_library();
    *slot = is_known ? gcu->slot : 0;
    const Rule *fail = scripted(named(function), is_known ? (int)*slot : NOBODY);
    if (fail != NULL)
        return (Ret)fail->value;
    if (!by_handle.started)
        return UNINITIALIZED;
    return !is_known ? INVALID_ARGUMENT : is_present(*slot) ? SUCCESS : GCU_IS_LOST;
}

#define ENTER_HANDLE(gcu) u32 slot; GO_ON(enter_handle(__func__, gcu, &slot))

API Ret BY_HANDLE(DeviceGetName)(const Gcu *gcu, char *out, unsigned int length)
{
    ENTER_HANDLE(gcu);
    if (strlen(CARD->name) >= length)
        LEAVE(INSUFFICIENT_SIZE);
    strcpy(out, CARD->name);
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetPciInfo_v3)(const Gcu *gcu, PciInfo *out)
{
    ENTER_HANDLE(gcu);
    *out = (PciInfo){CARD->domain, CARD->bus, CARD->dev, CARD->func, DEVICE << 16 | VENDOR, 0, ""};
    snprintf(out->bus_id, sizeof out->bus_id, "%04x:%02x:%02x.%x", CARD->domain, CARD->bus, CARD->dev, CARD->func);
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetMemoryInfo)(const Gcu *gcu, DeviceMemory *out)
{
    ENTER_HANDLE(gcu);
    u64 used = (u64)CARD->used << 20;
    *out = (DeviceMemory){CARD->memory, CARD->memory - used, used};
    LEAVE(SUCCESS);
}

#ifndef WITHOUT_SUFFIXES
API Ret BY_HANDLE(DeviceGetMemoryInfo_v2)(const Gcu *gcu, DeviceMemoryV2 *out)
{
    ENTER_HANDLE(gcu);
    if (out->version != (sizeof *out | 2U << 24))
        LEAVE(ARGUMENT_VERSION_MISMATCH);
    u64 used = (u64)CARD->used << 20;
    *out = (DeviceMemoryV2){out->version, CARD->memory, CARD->memory - used, used, 0};
    LEAVE(SUCCESS);
}
#endif

API Ret BY_HANDLE(DeviceGetUtilizationRates)(const Gcu *gcu, Utilization *out)
{
    ENTER_HANDLE(gcu);
    *out = (Utilization){(unsigned int)CARD->usage, CARD->memory_usage};
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetTemperature)(const Gcu *gcu, int sensor, int *out)
{
    ENTER_HANDLE(gcu);
    *out = (int)CARD->temperature.asic;
    LEAVE(sensor ? INVALID_ARGUMENT : SUCCESS);
}

API Ret BY_HANDLE(DeviceGetPowerUsage)(const Gcu *gcu, unsigned int *out)
{
    ENTER_HANDLE(gcu);
    *out = (unsigned int)(CARD->drawn * 1000);
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetEnforcedPowerLimit)(const Gcu *gcu, unsigned int *out)
{
    ENTER_HANDLE(gcu);
    *out = (unsigned int)(CARD->limit * 1000);
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetClockInfo)(const Gcu *gcu, int type, unsigned int *out)
{
    ENTER_HANDLE(gcu);
    *out = type == 1 ? CARD->sip_clock : CARD->memory_clock;
    LEAVE(type == 1 || type == 2 ? SUCCESS : INVALID_ARGUMENT);
}

#if !defined(WITHOUT_RUNNING) && !defined(WITHOUT_PROCESSES)

API Ret BY_HANDLE(DeviceGetComputeRunningProcesses_v3)(const Gcu *gcu, unsigned int *count, RunningProcess *out)
{
    ENTER_HANDLE(gcu);
    unsigned int room = *count;
    *count = 0;
    list_processes(script.cards);
    for (u32 i = 0; i < listed_count; i++)
        if (listed[i].slot == slot && (*count)++ < room)
            out[*count - 1] = (RunningProcess){listed[i].pid, listed[i].memory, ~0U, ~0U};
    LEAVE(*count > room ? INSUFFICIENT_SIZE : SUCCESS);
}

static u64 now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000 + (u64)time.tv_nsec / 1000;
}

API Ret BY_HANDLE(DeviceGetProcessUtilization)(const Gcu *gcu, UtilizationSample *out, unsigned int *count,
                                               unsigned long long since)
{
    ENTER_HANDLE(gcu);
    unsigned int room = *count;
    u64 time = script.sampled ? script.sampled : now();
    *count = 0;
    list_processes(script.cards);
    for (u32 i = 0; i < listed_count && time > since; i++)
        if (listed[i].slot == slot && listed[i].percent >= 0 && (*count)++ < room)
            out[*count - 1] = (UtilizationSample){listed[i].pid, time, (unsigned int)listed[i].percent, 0, 0, 0};
    LEAVE(*count > room ? INSUFFICIENT_SIZE : SUCCESS);
}

#endif

API Ret BY_HANDLE(DeviceGetCurrPcieLinkWidth)(const Gcu *gcu, unsigned int *out)
{
    ENTER_HANDLE(gcu);
    *out = (unsigned int)CARD->link.width;
    LEAVE(SUCCESS);
}

API Ret BY_HANDLE(DeviceGetMaxPcieLinkWidth)(const Gcu *gcu, unsigned int *out)
{
    ENTER_HANDLE(gcu);
    *out = (unsigned int)CARD->link.max_width;
    LEAVE(SUCCESS);
}

#endif

/* ---- of the stub itself ---- */

#define SIZE_OF(kind) if (strcmp(name, #kind) == 0) return sizeof(kind)

API size_t efml_stub_sizeof(const char *name)
{
    SIZE_OF(DeviceInfo);
    SIZE_OF(MemInfo);
    SIZE_OF(Event);
    SIZE_OF(EccStatus);
    SIZE_OF(RmaStatus);
    SIZE_OF(RmaDetails);
    SIZE_OF(Power);
    SIZE_OF(Thermal);
    SIZE_OF(LinkInfo);
    SIZE_OF(LarePortInfo);
    SIZE_OF(ProcessInfo);
    SIZE_OF(ErrorRecord);
    SIZE_OF(DeviceMemory);
    SIZE_OF(DeviceMemoryV2);
    SIZE_OF(PciInfo);
    SIZE_OF(Utilization);
    SIZE_OF(RunningProcess);
    SIZE_OF(UtilizationSample);
    return 0;
}

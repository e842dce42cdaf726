// The machine that runs a kernel on the CPU: every thread a fiber, every load and store checked. Blocks run one
// after another; those of a cooperative launch all live at once and go on by turns.
//
// g++ compiles a kernel with -fsanitize=thread, which puts a call such as __tsan_read8(address) before each
// access to memory. The library of ThreadSanitizer is not linked: those functions are defined here. Each of
// them asks a shadow of the memory four questions.
//   bounds   does the address lie in an array of this launch, in this block's shared memory, in the
//            thread's own stack, or in a __device__ variable?
//   poison   has every byte that is read been written?
//   const    is the array writable?
//   race     is this access ordered after the last conflicting one?
//
// Ordered means, as in CUDA's memory model: the same thread earlier; a __syncthreads between; a __syncwarp
// of both lanes between (a shuffle or a vote orders no memory); or a handshake: the other thread fenced
// and then did an atomic, and this one's warp (its block, after a barrier) did an atomic on that address later.
// Orders that go through a third block are not followed.
//
// Blocks run in a random order if there is a seed, so a thread can wait for a block that started before its own, or
// for any in a cooperative launch, with __nanosleep in its loop. A wait for any other block is a deadlock, and so is
// one during which nothing in memory changes.
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

// Threads switch by a few instructions where we have them, else by ucontext.
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_ASSEMBLY 1
#else
#define SIMT_ASSEMBLY 0
#include <ucontext.h>
#endif

namespace {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using Address = uintptr_t;

struct Triple {
    u32 x, y, z;
};

// ---- what Python passes (the same structures in launch.py) -------------------------------------------

struct Array { // memory of the caller, copied in before the launch and out after it
    void* host;
    u64 bytes;
    u64 alignment_offset; // the address modulo 256 that the copy gets
    u8* written;          // one byte per byte: 0 where poisoned; null when all is written
    u32 item_bytes;
    u32 writable;
};
struct Argument {
    int array;   // -1: `scalar` points to the value
    u32 item_bytes;
    u64 offset;  // of the argument in the array
    u64 bytes;
    const void* scalar;
};
struct Parameter {
    int pointer, constant, kind, bytes;
};
struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    int parameters;
    const Parameter* parameter;
    int most_threads;
};
struct Stacks { // of all threads that live at once, each above its guard; kept from one launch to the next
    u8* memory;
    u64 threads;
};
struct Launch {
    const Kernel* kernel;
    Stacks* stacks; // the same for every library of the process
    Triple grid, block;
    u64 shared_bytes;
    long long seed; // below 0: every order as numbered
    int blocks_in_order; // not 0: blocks run as numbered, whatever the seed
    int cooperative;     // not 0: all blocks live at once
    int arrays, arguments;
    const Array* array;
    const Argument* argument;
    // What went wrong:
    char kind[32];
    char text[1024];
    Triple at_block, at_thread;
    int at_argument;      // -1: not in an argument
    long long at_element;
    u64 at_code;          // offset in this library of the access, 0 if unknown
    u64 accesses;         // how many were checked
};

// ---- shadow memory -----------------------------------------------------------------------------------

// The last write and the last reads of one granule. Blocks are numbered from 1; 0 means none.
struct Cell {
    u32 write_block, write_epoch, write_stamp;
    u16 write_thread;
    u8 write_atomic, poison;
    u32 read_block, read_epoch, read_stamp, read_lanes;
    u16 read_warp;
    u8 read_by_warps, read_by_blocks; // 1: more than one
};

enum class Place { array, shared, device };

struct Region {
    Address base, end;
    Place place;
    bool writable;
    int array;
    u32 shift; // a granule is 1 << shift bytes
    Cell* cells;
    u64 count;
};

template <class T> T* zeroed(u64 count)
{
    const u64 bytes = count * sizeof(T) + 64;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return static_cast<T*>(memory);
}
template <class T> void release(T* memory, u64 count) { munmap((void*)memory, count * sizeof(T) + 64); }

u32 shift_for(u64 granule)
{
    u32 shift = 3;
    while (shift && (granule % (1u << shift)))
        --shift;
    return shift;
}

// ---- handshakes ----------------------------------------------------------------------------------------

enum Scope { within_block, within_device };

// One atomic by a thread that had fenced: which earlier accesses of its block it makes visible.
struct Release {
    u32 block;
    u16 warp;
    u32 epoch[2];     // all accesses of earlier epochs
    u32 lane[2][32];  // accesses of this warp's lanes with smaller stamps
    std::shared_ptr<std::vector<u32>> thread[2]; // accesses of any thread with smaller stamps

    bool says_as_much_as(const Release& other) const
    {
        return warp == other.warp && !memcmp(epoch, other.epoch, sizeof(epoch)) && !memcmp(lane, other.lane, sizeof(lane)) &&
               thread[0] == other.thread[0] && thread[1] == other.thread[1];
    }
};
struct Sync {
    std::vector<Release> releases;
    std::unordered_map<u32, std::vector<u32>> by_block;
};
using Acquired = std::vector<std::pair<Sync*, u32>>; // an address, and how many of its releases were seen

void acquire(Acquired& set, Sync* sync, u32 count)
{
    for (auto& [known, seen] : set)
        if (known == sync) {
            if (count > seen)
                seen = count;
            return;
        }
    set.emplace_back(sync, count);
}

// The last read of a granule by one of the blocks that have read it since it was written, in a cooperative launch.
struct Reader {
    u32 block, epoch;
};

// ---- threads, warps, blocks ------------------------------------------------------------------------------

constexpr int most_threads = 1024, most_warps = 32, widest = 64;
constexpr size_t stack_bytes = 256 * 1024, guard_bytes = 4096;
constexpr size_t most_shared = 227 * 1024;

constexpr u64 most_sleeps = 1 << 16; // of all threads, while nothing in memory changes

enum class State : u8 { ready, asleep, in_exchange, in_barrier, exited };

struct Fiber {
    void* sp;
    Address stack_low;
    State state;
    u16 thread, warp;
    u32 lane;
    Triple index;
    u32 fence_stamp[2], fence_epoch[2];
    const char* wait_kind;
    const char* wait_file;
    int wait_line;
    u32 wait_mask;
    int barrier_result;
#if !SIMT_ASSEMBLY
    ucontext_t context;
#endif
};

// A warp-wide instruction that is under way.
struct Exchange {
    u32 mask, arrived, left;
    const char* kind;
    int bytes;
    bool done;
    u8 data[32 * widest]; // what each lane brings, one after the other; zeros where none came
};

struct Warp {
    u32 stamp;      // counts the warp's synchronising events; accesses carry its value
    u32 full_event; // the last event that joined every lane
    u32 known[32][32];
    u32 lanes;      // lanes that exist
    u32 exited;     // lanes that have come to their end
    Acquired acquired;
    std::vector<Exchange*> pending;
};

// What a block has of its own.
struct Block {
    std::vector<Fiber> fiber;
    std::vector<Warp> warp;
    u8* stacks;
    u8* dynamic_memory;
    std::vector<u8> static_memory; // its static shared memory, while another block runs
    std::vector<Region> shared;    // its shared memory's shadows, likewise
    Triple block_index;
    u32 block; // its number, from 1
    u32 epoch; // barriers that it has passed
    Acquired acquired;
    bool fenced;
    u32 fence_epoch_done[2];
    std::shared_ptr<std::vector<u32>> fence_done[2];
    int at_barrier, barrier_op, barrier_result;
    const char* barrier_file;
    int barrier_line;
};

// The block that runs, and what all blocks have in common.
struct Machine : Block {
    Launch* launch;
    const Kernel* kernel;
    std::vector<Region> regions;
    Region* last;
    std::vector<void*> parameters;
    std::unordered_map<Address, Sync> syncs;
    std::unordered_map<Address, std::vector<Reader>> readers; // of granules that several blocks have read
    std::vector<u32> blocks_run;
    u8* static_base; // where each block has its static shared memory while it runs
    size_t static_bytes;
    int threads, warps;
    u64 random;
    bool shuffled, failed;
    u64 sleeps; // since anything changed
    std::vector<Exchange*> pool;
    void* main_sp;
#if !SIMT_ASSEMBLY
    ucontext_t main_context;
#endif
};

Machine machine;
Fiber* current; // null outside a kernel

u64 next_random()
{
    u64 z = machine.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// ---- switching ---------------------------------------------------------------------------------------------

#if SIMT_ASSEMBLY
extern "C" void simt_switch(void** save, void* load);
asm(R"(
    .text
    .p2align 4
    .type simt_switch, @function
    .hidden simt_switch
    .globl simt_switch
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, .-simt_switch
)");
void to_main() { simt_switch(&current->sp, machine.main_sp); }
void to_fiber(Fiber* fiber)
{
    current = fiber;
    simt_switch(&machine.main_sp, fiber->sp);
    current = nullptr;
}
#else
void to_main() { swapcontext(&current->context, &machine.main_context); }
void to_fiber(Fiber* fiber)
{
    current = fiber;
    swapcontext(&machine.main_context, &fiber->context);
    current = nullptr;
}
#endif

// ---- failing -------------------------------------------------------------------------------------------------

// Records the first error and leaves the kernel for good.
[[noreturn]] void fail(const char* kind, const void* code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
[[noreturn]] void fail(const char* kind, const void* code, const char* format, ...)
{
    Launch* launch = machine.launch;
    va_list list;
    va_start(list, format);
    vsnprintf(launch->text, sizeof(launch->text), format, list);
    va_end(list);
    snprintf(launch->kind, sizeof(launch->kind), "%s", kind);
    launch->at_block = machine.block_index;
    launch->at_thread = current->index;
    Dl_info info;
    if (code && dladdr(code, &info))
        launch->at_code = Address(code) - Address(info.dli_fbase) - 1;
    machine.failed = true;
    to_main();
    abort();
}

// Names the argument and element at an address, for the error.
void locate(Region* region, Address address)
{
    Launch* launch = machine.launch;
    const long long offset = (long long)(address - region->base);
    for (int i = 0; i < launch->arguments; ++i) {
        const Argument& argument = launch->argument[i];
        if (argument.array != region->array)
            continue;
        const long long inside = offset - (long long)argument.offset;
        const bool covers = inside >= 0 && inside < (long long)argument.bytes;
        if (launch->at_argument < 0 || covers) {
            const long long item = argument.item_bytes;
            launch->at_argument = i;
            launch->at_element = inside >= 0 ? inside / item : -((-inside + item - 1) / item);
        }
        if (covers)
            return;
    }
}

[[noreturn]] void fail_at(const char* kind, Region* region, Address address, const void* code, const char* what)
{
    if (region->place == Place::array)
        locate(region, address);
    else {
        machine.launch->at_argument = region->place == Place::shared ? -2 - region->array : -4;
        machine.launch->at_element = (long long)(address - region->base);
    }
    fail(kind, code, "%s", what);
}

const char* describe(u16 thread)
{
    static char text[4][64];
    static int turn;
    char* out = text[turn++ % 4];
    const Triple& index = machine.fiber[thread].index;
    snprintf(out, 64, "thread (%u,%u,%u)", index.x, index.y, index.z);
    return out;
}

// ---- the shadow's questions --------------------------------------------------------------------------------------

u32 known(const Warp& warp, u32 mine, u32 other)
{
    const u32 direct = warp.known[mine][other];
    return direct > warp.full_event ? direct : warp.full_event;
}

bool releases_cover(const Acquired& set, u32 block, u32 epoch, u16 thread, u32 stamp)
{
    const Scope scope = block == machine.block ? within_block : within_device;
    for (const auto& [sync, count] : set) {
        const auto found = sync->by_block.find(block);
        if (found == sync->by_block.end())
            continue;
        for (size_t place = found->second.size(); place-- > 0;) { // the latest ones cover most
            const u32 i = found->second[place];
            if (i >= count)
                continue;
            const Release& release = sync->releases[i];
            if (epoch < release.epoch[scope])
                return true;
            if (thread / 32 == release.warp && stamp < release.lane[scope][thread % 32])
                return true;
            if (release.thread[scope] && stamp < (*release.thread[scope])[thread])
                return true;
        }
    }
    return false;
}

// Is the access (block, epoch, thread, stamp) ordered before what the current thread does now?
bool ordered(u32 block, u32 epoch, u16 thread, u32 stamp)
{
    if (block == machine.block) {
        if (epoch < machine.epoch || thread == current->thread)
            return true;
        if (thread / 32 == current->warp && stamp < known(machine.warp[current->warp], current->lane, thread % 32))
            return true;
    }
    return releases_cover(machine.warp[current->warp].acquired, block, epoch, thread, stamp) ||
           releases_cover(machine.acquired, block, epoch, thread, stamp);
}

// Has every block that read a granule made a release since that was acquired here? Of several readers only the
// epochs are known: a __syncthreads, and a fence after it, must stand between a read and its release.
bool acquired_every_reader(Address address, const Cell& cell)
{
    const u16 nobody = most_threads;
    for (const Reader& reader : machine.readers[address])
        if (reader.block != machine.block && !ordered(reader.block, reader.epoch, nobody, ~0u))
            return false;
    if (cell.read_block == machine.block)
        return cell.read_epoch < machine.epoch || (!cell.read_by_warps && cell.read_warp == current->warp);
    return ordered(cell.read_block, cell.read_epoch, nobody, ~0u);
}

bool acquired_every_block()
{
    for (u32 block : machine.blocks_run) {
        bool found = block == machine.block;
        for (const Acquired* set : {&machine.warp[current->warp].acquired, &machine.acquired})
            for (const auto& [sync, count] : *set)
                found = found || sync->by_block.count(block);
        if (!found)
            return false;
    }
    return true;
}

[[noreturn]] void fail_race(Region* region, Address address, const void* code, const Cell& cell, const char* mine,
                            bool with_write)
{
    char what[400];
    const u32 block = with_write ? cell.write_block : cell.read_block;
    const char* theirs = with_write ? (cell.write_atomic ? "changed atomically" : "written") : "read";
    if (block != machine.block) {
        const u32 number = block - 1, gx = machine.launch->grid.x, gy = machine.launch->grid.y;
        snprintf(what, sizeof(what),
                 "%s what block (%u,%u,%u) has %s in the same launch, with no handshake between them (__threadfence, "
                 "then an atomic there; an atomic on the same address here)",
                 mine, number % gx, number / gx % gy, number / gx / gy, theirs);
    } else if (with_write || !cell.read_by_warps) {
        u16 thread = cell.write_thread;
        if (!with_write) {
            const u32 others = cell.read_lanes & ~(cell.read_warp == current->warp ? 1u << current->lane : 0u);
            thread = u16(cell.read_warp * 32 + __builtin_ctz(others ? others : 1u));
        }
        snprintf(what, sizeof(what), "%s what %s has %s, with no %s between them", mine, describe(thread), theirs,
                 thread / 32 == current->warp ? "__syncwarp or __syncthreads" : "__syncthreads");
    } else
        snprintf(what, sizeof(what), "%s what several warps have read, with no __syncthreads between them", mine);
    fail_at("race", region, address, code, what);
}

void check_after_write(Region* region, Address address, const void* code, const Cell& cell, bool atomic, const char* mine)
{
    if (cell.write_block == 0 || (atomic && cell.write_atomic))
        return;
    if (region->place == Place::shared && cell.write_block != machine.block)
        return;
    if (!ordered(cell.write_block, cell.write_epoch, cell.write_thread, cell.write_stamp)) {
        // An atomic by this very warp is the last one that anybody did, so its result was seen here.
        if (cell.write_atomic && cell.write_block == machine.block && cell.write_thread / 32 == current->warp)
            return;
        fail_race(region, address, code, cell, mine, true);
    }
}

void check_after_read(Region* region, Address address, const void* code, const Cell& cell, const char* mine)
{
    if (cell.read_block == 0 || (region->place == Place::shared && cell.read_block != machine.block))
        return;
    if (cell.read_by_blocks) {
        if (!(machine.launch->cooperative ? acquired_every_reader(address, cell) : acquired_every_block()))
            fail_race(region, address, code, cell, mine, false);
        return;
    }
    if (cell.read_block == machine.block && cell.read_epoch < machine.epoch)
        return;
    if (cell.read_by_warps) {
        if (cell.read_block == machine.block || !acquired_every_block())
            fail_race(region, address, code, cell, mine, false);
        return;
    }
    for (u32 lanes = cell.read_lanes; lanes; lanes &= lanes - 1)
        if (!ordered(cell.read_block, cell.read_epoch, u16(cell.read_warp * 32 + __builtin_ctz(lanes)), cell.read_stamp))
            fail_race(region, address, code, cell, mine, false);
}

void remember_reader(Address address, const Cell& cell)
{
    std::vector<Reader>& readers = machine.readers[address];
    for (Reader& reader : readers)
        if (reader.block == cell.read_block) {
            reader.epoch = cell.read_epoch;
            return;
        }
    readers.push_back({cell.read_block, cell.read_epoch});
}

void note_read(Address address, Cell& cell)
{
    const u32 bit = 1u << current->lane, stamp = machine.warp[current->warp].stamp;
    if (cell.read_block == machine.block && cell.read_epoch == machine.epoch) {
        if (cell.read_warp == current->warp)
            cell.read_lanes |= bit;
        else
            cell.read_by_warps = 1;
        if (stamp > cell.read_stamp)
            cell.read_stamp = stamp;
        return;
    }
    if (cell.read_block && cell.read_block != machine.block) {
        cell.read_by_blocks = 1;
        if (machine.launch->cooperative)
            remember_reader(address, cell);
    }
    cell.read_block = machine.block;
    cell.read_epoch = machine.epoch;
    cell.read_stamp = stamp;
    cell.read_lanes = bit;
    cell.read_warp = current->warp;
    cell.read_by_warps = 0;
}

void note_write(Address address, Cell& cell, bool atomic)
{
    if (cell.read_by_blocks)
        machine.readers.erase(address);
    cell.write_block = machine.block;
    cell.write_epoch = machine.epoch;
    cell.write_stamp = machine.warp[current->warp].stamp;
    cell.write_thread = current->thread;
    cell.write_atomic = atomic;
    cell.poison = 0;
    cell.read_block = 0;
    cell.read_by_warps = cell.read_by_blocks = 0;
}

// Gives a region smaller granules, when an access does not fill the ones it has.
void refine(Region* region, u32 shift)
{
    const u64 count = (region->end - region->base + (1u << shift) - 1) >> shift;
    Cell* cells = zeroed<Cell>(count);
    for (u64 i = 0; i < count; ++i)
        cells[i] = region->cells[i >> (region->shift - shift)];
    for (u64 i = 0; i < region->count; ++i) // readers of a granule have read all its parts
        if (region->cells[i].read_by_blocks) {
            const Address whole = region->base + (i << region->shift);
            for (Address part = whole + (1ull << shift); part < whole + (1ull << region->shift); part += 1ull << shift)
                machine.readers[part] = machine.readers[whole];
        }
    release(region->cells, region->count);
    region->cells = cells;
    region->count = count;
    region->shift = shift;
}

[[noreturn]] void fail_outside(Address address, u64 bytes, bool write, const void* code)
{
    for (int i = 0; i < machine.threads; ++i)
        if (address - machine.fiber[i].stack_low < stack_bytes)
            fail("out of bounds", code, "%s the local variables of %s", write ? "writes to" : "reads", describe(u16(i)));
    Region* nearest = nullptr;
    u64 distance = 1 << 16;
    const auto consider = [&](Region& region) {
        const u64 d = address < region.base ? region.base - address : address >= region.end ? address - region.end : 0;
        if (region.place != Place::device && d < distance)
            distance = d, nearest = &region;
    };
    for (Region& region : machine.regions)
        consider(region);
    for (Region& region : machine.shared)
        consider(region);
    char what[160];
    snprintf(what, sizeof(what), "%s %llu bytes outside of the array", write ? "writes" : "reads", bytes);
    if (nearest)
        fail_at("out of bounds", nearest, address, code, what);
    fail("out of bounds", code, "%s %llu bytes at %#llx, which is near no array of this launch", write ? "writes" : "reads",
         bytes, (u64)address);
}

Region* find(Address address, u64 bytes)
{
    Region* region = machine.last;
    if (region && address - region->base < region->end - region->base && address + bytes <= region->end)
        return region;
    for (std::vector<Region>* regions : {&machine.regions, &machine.shared})
        for (Region& candidate : *regions)
            if (address >= candidate.base && address + bytes <= candidate.end)
                return machine.last = &candidate;
    return nullptr;
}

void check(Address address, u64 bytes, bool write, bool atomic, const void* code)
{
    if (!current || address - current->stack_low < stack_bytes || bytes == 0)
        return;
    ++machine.launch->accesses;
    Region* region = find(address, bytes);
    if (!region)
        fail_outside(address, bytes, write, code);
    if (write && !region->writable)
        fail_at("read-only", region, address, code, "writes to an array that the launch may only read");
    const u64 granule = 1ull << region->shift, offset = address - region->base;
    if ((offset | bytes) & (granule - 1))
        refine(region, shift_for(offset | bytes));
    const u32 shift = region->shift;
    for (u64 i = offset >> shift; i < (offset + bytes) >> shift; ++i) {
        Cell& cell = region->cells[i];
        const Address here = region->base + (i << shift);
        if (!write || atomic) {
            const bool poison = region->place == Place::shared ? cell.write_block != machine.block : cell.poison;
            if (poison)
                fail_at("uninitialised", region, here, code, "reads what was never written");
        }
        if (!region->writable)
            continue;
        if (write) {
            machine.sleeps = atomic ? machine.sleeps : 0;
            const char* mine = atomic ? "changes atomically" : "writes";
            check_after_write(region, here, code, cell, atomic, mine);
            check_after_read(region, here, code, cell, mine);
            note_write(here, cell, atomic);
        } else {
            check_after_write(region, here, code, cell, false, "reads");
            note_read(here, cell);
        }
    }
}

// ---- handing over to other threads ---------------------------------------------------------------------------------

void wait(State state, const char* kind, u32 mask, const char* file, int line)
{
    current->state = state;
    current->wait_kind = kind;
    current->wait_mask = mask;
    current->wait_file = file;
    current->wait_line = line;
    to_main();
}

const char* base_name(const char* path)
{
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Where a thread is stuck, in words.
void tell_wait(char* out, size_t size, const Fiber& fiber)
{
    if (fiber.state == State::exited)
        snprintf(out, size, "%s has exited", describe(fiber.thread));
    else if (fiber.state == State::in_exchange)
        snprintf(out, size, "%s waits in %s with mask 0x%08x at %s:%d", describe(fiber.thread), fiber.wait_kind,
                 fiber.wait_mask, base_name(fiber.wait_file), fiber.wait_line);
    else if (fiber.state == State::in_barrier)
        snprintf(out, size, "%s waits in %s at %s:%d", describe(fiber.thread), fiber.wait_kind,
                 base_name(fiber.wait_file), fiber.wait_line);
    else
        snprintf(out, size, "%s runs", describe(fiber.thread));
}

// Arrives at a warp-wide instruction and returns when all lanes of the mask have.
Exchange* meet(const char* kind, u32 mask, const void* mine, int bytes, bool needs_all, const char* file, int line)
{
    Warp& warp = machine.warp[current->warp];
    const u32 me = 1u << current->lane;
    if (!(mask & me))
        fail("warp", nullptr, "%s with mask 0x%08x at %s:%d is called by lane %u, which the mask leaves out", kind, mask,
             base_name(file), line, current->lane);
    const u32 alive = warp.lanes & ~warp.exited;
    if (needs_all && (mask & ~alive)) {
        const u32 lane = u32(__builtin_ctz(mask & ~alive));
        fail("warp", nullptr, "%s with mask 0x%08x at %s:%d names lane %u, which %s", kind, mask, base_name(file), line,
             lane, warp.lanes >> lane & 1 ? "has exited" : "does not exist in this block");
    }
    const u32 wanted = mask & alive;
    Exchange* group = nullptr;
    for (Exchange* candidate : warp.pending) {
        // Groups may overlap while they wait, unless each has a lane that the other one waits for.
        if (candidate->done || !(candidate->mask & me) || !(candidate->arrived & mask))
            continue;
        const bool same_kind = candidate->kind == kind || !strcmp(candidate->kind, kind);
        if (candidate->mask != mask || !same_kind || candidate->bytes != bytes) {
            char other[200] = "";
            for (u32 lane = 0; lane < 32; ++lane)
                if (candidate->arrived >> lane & 1) {
                    tell_wait(other, sizeof(other), machine.fiber[current->warp * 32 + lane]);
                    break;
                }
            fail("warp", nullptr, "%s with mask 0x%08x at %s:%d, but %s; lanes of one mask must execute the same instruction",
                 kind, mask, base_name(file), line, other);
        }
        group = candidate;
    }
    if (!group) {
        if (machine.pool.empty())
            machine.pool.push_back(static_cast<Exchange*>(malloc(sizeof(Exchange))));
        group = machine.pool.back();
        machine.pool.pop_back();
        group->mask = mask;
        group->arrived = group->left = 0;
        group->kind = kind;
        group->bytes = bytes;
        group->done = false;
        memset(group->data, 0, size_t(32 * bytes));
        warp.pending.push_back(group);
    }
    if (bytes)
        memcpy(group->data + current->lane * u32(bytes), mine, size_t(bytes));
    group->arrived |= me;
    if ((group->arrived & wanted) == wanted) {
        group->done = true;
        for (u32 lanes = group->arrived & ~me; lanes; lanes &= lanes - 1)
            machine.fiber[current->warp * 32 + __builtin_ctz(lanes)].state = State::ready;
        if (kind[2] == 's' && kind[3] == 'y') { // __syncwarp orders memory; nothing else in a warp does
            const u32 event = ++warp.stamp;
            if (group->arrived == warp.lanes)
                warp.full_event = event;
            else {
                u32 joined[32] = {};
                for (u32 a = group->arrived; a; a &= a - 1)
                    for (int other = 0; other < 32; ++other)
                        if (warp.known[__builtin_ctz(a)][other] > joined[other])
                            joined[other] = warp.known[__builtin_ctz(a)][other];
                for (u32 a = group->arrived; a; a &= a - 1)
                    joined[__builtin_ctz(a)] = event;
                for (u32 a = group->arrived; a; a &= a - 1)
                    memcpy(warp.known[__builtin_ctz(a)], joined, sizeof(joined));
            }
        }
    } else
        wait(State::in_exchange, kind, mask, file, line);
    return group;
}

void leave(Exchange* group)
{
    group->left |= 1u << current->lane;
    if (group->left != group->arrived)
        return;
    std::vector<Exchange*>& pending = machine.warp[current->warp].pending;
    for (size_t i = 0; i < pending.size(); ++i)
        if (pending[i] == group) {
            pending.erase(pending.begin() + long(i));
            break;
        }
    machine.pool.push_back(group);
}

void open_barrier()
{
    machine.at_barrier = 0;
    ++machine.epoch;
    for (int w = 0; w < machine.warps; ++w) {
        for (const auto& [sync, count] : machine.warp[w].acquired)
            acquire(machine.acquired, sync, count);
        machine.warp[w].acquired.clear();
    }
    if (machine.fenced) {
        machine.fenced = false;
        for (int scope = 0; scope < 2; ++scope) {
            auto stamps = std::make_shared<std::vector<u32>>(machine.threads);
            for (int i = 0; i < machine.threads; ++i) {
                (*stamps)[i] = machine.fiber[i].fence_stamp[scope];
                if (machine.fiber[i].fence_epoch[scope] > machine.fence_epoch_done[scope])
                    machine.fence_epoch_done[scope] = machine.fiber[i].fence_epoch[scope];
            }
            machine.fence_done[scope] = stamps;
        }
    }
    for (int i = 0; i < machine.threads; ++i) {
        machine.fiber[i].barrier_result = machine.barrier_result; // before the next barrier starts afresh
        if (machine.fiber[i].state == State::in_barrier)
            machine.fiber[i].state = State::ready;
    }
}

void arrive_at_barrier(const char* kind, int op, int predicate, const char* file, int line)
{
    if (machine.at_barrier == 0) {
        machine.barrier_file = file;
        machine.barrier_line = line;
        machine.barrier_op = op;
        machine.barrier_result = op == 1;
        for (int i = 0; i < machine.threads; ++i)
            if (machine.fiber[i].state == State::exited)
                fail("barrier", nullptr, "%s at %s:%d, but %s has exited; all threads of the block must reach it", kind,
                     base_name(file), line, describe(u16(i)));
    } else if (machine.barrier_line != line || strcmp(machine.barrier_file, file) || machine.barrier_op != op)
        fail("barrier", nullptr, "%s at %s:%d, but other threads of the block wait in the one at %s:%d", kind,
             base_name(file), line, base_name(machine.barrier_file), machine.barrier_line);
    int& result = machine.barrier_result;
    result = op == 0 ? result + (predicate != 0) : op == 1 ? (result && predicate) : (result || predicate);
    if (++machine.at_barrier == machine.threads)
        open_barrier();
    else
        wait(State::in_barrier, kind, 0, file, line);
}

// ---- running -----------------------------------------------------------------------------------------------------------

constexpr u64 gap = 16 * 1024;

void add_region(std::vector<Region>& regions, Address base, u64 bytes, Place place, bool writable, int array, u64 granule)
{
    Region region = {base, base + bytes, place, writable, array, shift_for(granule), nullptr, 0};
    region.count = (bytes + (1u << region.shift) - 1) >> region.shift;
    region.cells = zeroed<Cell>(region.count);
    regions.push_back(region);
}

void release_cells(const std::vector<Region>& regions)
{
    for (const Region& region : regions)
        release(region.cells, region.count);
}

constexpr size_t stack_each = stack_bytes + guard_bytes;

// Sees to it that so many threads have stacks. To map them, guard them and give them back took most of a launch.
void reserve_stacks(u64 threads)
{
    Stacks& stacks = *machine.launch->stacks;
    if (threads <= stacks.threads)
        return;
    if (stacks.memory)
        release(stacks.memory, stack_each * stacks.threads);
    stacks.memory = zeroed<u8>(stack_each * threads);
    stacks.threads = threads;
    for (u64 i = 0; i < threads; ++i)
        mprotect(stacks.memory + stack_each * i, guard_bytes, PROT_NONE);
}

// The stacks and shared memory of the block that takes its place in the machine, one of those that live at once.
void give_memory(u64 place)
{
    machine.stacks = machine.launch->stacks->memory + stack_each * size_t(machine.threads) * place;
    const u64 bytes = machine.launch->shared_bytes;
    machine.dynamic_memory = zeroed<u8>(bytes + 2 * gap) + gap;
    memset(machine.dynamic_memory, 0xff, bytes);
    memset(machine.static_base, 0xff, machine.static_bytes);
    if (machine.static_bytes)
        add_region(machine.shared, Address(machine.static_base), machine.static_bytes, Place::shared, true, 0, 4);
    if (bytes)
        add_region(machine.shared, Address(machine.dynamic_memory), bytes, Place::shared, true, 1, 4);
}

void release_memory(Block& block)
{
    release(block.dynamic_memory - gap, machine.launch->shared_bytes + 2 * gap);
    release_cells(block.shared);
    block.shared.clear();
    block.dynamic_memory = nullptr;
}

void fiber_main()
{
    machine.kernel->call(machine.parameters.data());
    const Fiber& me = *current;
    if (machine.at_barrier)
        fail("barrier", nullptr, "exits while other threads of the block wait in __syncthreads at %s:%d",
             base_name(machine.barrier_file), machine.barrier_line);
    for (Exchange* group : machine.warp[me.warp].pending)
        if (!group->done && group->mask >> me.lane & 1)
            fail("warp", nullptr, "exits while other lanes wait for it in %s with mask 0x%08x", group->kind, group->mask);
    current->state = State::exited;
    machine.warp[me.warp].exited |= 1u << me.lane;
    to_main();
    abort();
}

void prepare_fiber(Fiber& fiber, int thread, const Triple& shape)
{
    const u32 t = u32(thread);
    fiber.thread = u16(t);
    fiber.warp = u16(t / 32);
    fiber.lane = t % 32;
    fiber.index = {t % shape.x, t / shape.x % shape.y, t / shape.x / shape.y};
    fiber.state = State::ready;
    memset(fiber.fence_stamp, 0, sizeof(fiber.fence_stamp));
    memset(fiber.fence_epoch, 0, sizeof(fiber.fence_epoch));
    fiber.stack_low = Address(machine.stacks) + size_t(thread) * stack_each + guard_bytes;
#if SIMT_ASSEMBLY
    // A different start for every thread spreads the stacks over the cache's sets.
    void** top = reinterpret_cast<void**>(fiber.stack_low + stack_bytes - 64 - 64 * (t % 61));
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(fiber_main);
    top -= 6;
    fiber.sp = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = reinterpret_cast<void*>(fiber.stack_low);
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
#endif
}

void fail_deadlock()
{
    char text[900] = "no thread of the block can go on: ";
    int told = 0;
    const char* last_kind = nullptr;
    for (int i = 0; i < machine.threads && told < 4; ++i) {
        const Fiber& fiber = machine.fiber[i];
        const char* kind = fiber.state == State::exited ? "exited" : fiber.wait_kind;
        if (last_kind && !strcmp(kind, last_kind))
            continue;
        last_kind = kind;
        current = &machine.fiber[i];
        char one[200];
        tell_wait(one, sizeof(one), fiber);
        if (told++)
            strcat(text, "; ");
        strcat(text, one);
    }
    Launch* launch = machine.launch;
    snprintf(launch->text, sizeof(launch->text), "%s", text);
    snprintf(launch->kind, sizeof(launch->kind), "deadlock");
    launch->at_block = machine.block_index;
    launch->at_thread = current ? current->index : Triple{0, 0, 0};
    machine.failed = true;
    current = nullptr;
}

void permute(std::vector<int>& order)
{
    for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[next_random() % i]);
}

// Resumes the lanes of a warp that can go on; false if none could.
bool run_warp(int w, std::vector<int>& lanes)
{
    bool any = false, again = true;
    while (again) {
        again = false;
        if (machine.shuffled)
            permute(lanes);
        for (int lane : lanes) {
            const int thread = w * 32 + lane;
            if (thread >= machine.threads || machine.fiber[thread].state != State::ready)
                continue;
            any = again = true;
            to_fiber(&machine.fiber[thread]);
            if (machine.failed)
                return false;
        }
        if (machine.shuffled && next_random() % 4 == 0)
            break; // let another warp go ahead
    }
    return any;
}

void start_block()
{
    machine.sleeps = 0;
    machine.epoch = 0;
    machine.at_barrier = 0;
    machine.fenced = false;
    machine.acquired.clear();
    for (int scope = 0; scope < 2; ++scope) {
        machine.fence_epoch_done[scope] = 0;
        machine.fence_done[scope].reset();
    }
    machine.warp.resize(size_t(machine.warps));
    for (int w = 0; w < machine.warps; ++w) {
        Warp& warp = machine.warp[w];
        const int left = machine.threads - 32 * w;
        warp.lanes = left >= 32 ? 0xffffffffu : (1u << left) - 1;
        warp.stamp = warp.full_event = warp.exited = 0;
        memset(warp.known, 0, sizeof(warp.known));
        warp.acquired.clear();
        for (Exchange* group : warp.pending)
            machine.pool.push_back(group);
        warp.pending.clear();
    }
    machine.fiber.resize(size_t(machine.threads));
    for (int i = 0; i < machine.threads; ++i)
        prepare_fiber(machine.fiber[i], i, machine.launch->block);
}

// Wakes the threads that sleep, and lets each that is ready go on; false if there was none.
bool take_turn()
{
    std::vector<int> warps, lanes;
    for (int w = 0; w < machine.warps; ++w)
        warps.push_back(w);
    for (int lane = 0; lane < 32; ++lane)
        lanes.push_back(lane);
    if (machine.shuffled)
        permute(warps);
    for (Fiber& fiber : machine.fiber)
        if (fiber.state == State::asleep)
            fiber.state = State::ready;
    bool any = false;
    for (int w : warps) {
        any = run_warp(w, lanes) || any;
        if (machine.failed)
            return false;
    }
    return any;
}

bool each_thread_is(State state)
{
    for (const Fiber& fiber : machine.fiber)
        if (fiber.state != state)
            return false;
    return true;
}

bool a_thread_is(State state)
{
    for (const Fiber& fiber : machine.fiber)
        if (fiber.state == state)
            return true;
    return false;
}

void run_block()
{
    start_block();
    while (!each_thread_is(State::exited)) {
        const bool any = take_turn();
        if (machine.failed)
            return;
        if (!any)
            return fail_deadlock();
    }
}

// A block takes its place in the machine, or leaves it; its static shared memory has one address for all blocks.
void exchange_block(Block& other)
{
    std::vector<u8>& mine = machine.static_memory;
    const size_t bytes = machine.static_bytes;
    mine.assign(machine.static_base, machine.static_base + bytes);
    std::swap(static_cast<Block&>(machine), other);
    if (machine.static_memory.size() == bytes && bytes)
        memcpy(machine.static_base, machine.static_memory.data(), bytes);
    machine.last = nullptr;
}

void number_block(int b)
{
    const Triple& grid = machine.launch->grid;
    const u32 n = u32(b);
    machine.block = n + 1;
    machine.block_index = {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y};
    machine.blocks_run.push_back(machine.block);
}

// Runs blocks that wait for each other: each goes on until all its threads wait, then the next one does.
void run_together(std::vector<int> order)
{
    std::vector<Block> blocks(order.size());
    for (int b : order) {
        exchange_block(blocks[size_t(b)]);
        give_memory(u64(b));
        number_block(b);
        start_block();
        exchange_block(blocks[size_t(b)]);
    }
    while (!order.empty() && !machine.failed) {
        if (machine.shuffled)
            permute(order);
        std::vector<int> left;
        for (int b : order) {
            exchange_block(blocks[size_t(b)]);
            do {
                if (!take_turn() && !machine.failed)
                    fail_deadlock();
            } while (!machine.failed && a_thread_is(State::ready) && !(machine.shuffled && next_random() % 4 == 0));
            if (!machine.failed && !each_thread_is(State::exited))
                left.push_back(b);
            exchange_block(blocks[size_t(b)]);
            if (machine.failed)
                break;
        }
        order = left;
    }
    for (Block& block : blocks)
        release_memory(block);
}

void run_grid()
{
    const Triple& grid = machine.launch->grid;
    std::vector<int> order;
    const u64 blocks = u64(grid.x) * grid.y * grid.z;
    for (u64 b = 0; b < blocks; ++b)
        order.push_back(int(b));
    if (machine.shuffled && !machine.launch->blocks_in_order)
        permute(order);
    reserve_stacks(u64(machine.threads) * (machine.launch->cooperative ? blocks : 1));
    if (machine.launch->cooperative)
        return run_together(order);
    give_memory(0);
    for (int b : order) {
        number_block(b);
        run_block();
        if (machine.failed)
            break;
    }
    release_memory(machine);
}

// ---- memory of a launch ----------------------------------------------------------------------------------------------------

// Marks what the caller says was never written; granules that are half written are made smaller.
void poison(Region& region, const Array& array)
{
    for (u64 b = 0; b < array.bytes; ++b)
        if (!array.written[b] != !array.written[b >> region.shift << region.shift]) {
            refine(&region, 0);
            break;
        }
    for (u64 i = 0; i < region.count; ++i)
        region.cells[i].poison = !array.written[i << region.shift];
}

struct Segments {
    Address inside, tls, tls_bytes, data, data_bytes;
};

int find_segments(dl_phdr_info* info, size_t, void* out)
{
    Segments* segments = static_cast<Segments*>(out);
    bool mine = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        mine = mine || (header.p_type == PT_LOAD && segments->inside - (info->dlpi_addr + header.p_vaddr) < header.p_memsz);
    }
    if (!mine)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type == PT_TLS) {
            struct { unsigned long module, offset; } index = {info->dlpi_tls_modid, 0};
            extern void* tls_address(void*) asm("__tls_get_addr");
            segments->tls = Address(tls_address(&index));
            segments->tls_bytes = header.p_memsz;
        }
        if (header.p_type == PT_LOAD) {
            if (header.p_flags & PF_W) {
                segments->data = info->dlpi_addr + header.p_vaddr;
                segments->data_bytes = header.p_memsz;
            } else
                add_region(machine.regions, info->dlpi_addr + header.p_vaddr, header.p_memsz, Place::device, false, 0, 8);
        }
    }
    return 1;
}

} // namespace

extern "C" {

// Bytes of static shared memory of this library.
u64 simt_static_shared()
{
    Segments segments = {};
    segments.inside = Address(&simt_static_shared);
    dl_iterate_phdr(find_segments, &segments);
    machine.regions.clear();
    return segments.tls_bytes;
}

// Runs a kernel; 0 if all was well, 1 if launch->kind and so on tell an error.
int simt_launch(Launch* launch)
{
    machine.launch = launch;
    machine.kernel = launch->kernel;
    machine.failed = false;
    machine.last = nullptr;
    machine.regions.clear();
    machine.syncs.clear();
    machine.readers.clear();
    machine.blocks_run.clear();
    machine.shuffled = launch->seed >= 0;
    machine.random = u64(launch->seed);
    machine.threads = int(launch->block.x * launch->block.y * launch->block.z);
    machine.warps = (machine.threads + 31) / 32;
    launch->at_argument = -1;
    launch->accesses = 0;

    u64 arena_bytes = gap;
    for (int i = 0; i < launch->arrays; ++i)
        arena_bytes += launch->array[i].bytes + 2 * gap + 512;
    u8* arena = zeroed<u8>(arena_bytes);
    Address next = Address(arena) + gap;
    std::vector<u8*> copies;
    for (int i = 0; i < launch->arrays; ++i) {
        const Array& array = launch->array[i];
        next = (next + 255) / 256 * 256 + array.alignment_offset;
        u8* copy = reinterpret_cast<u8*>(next);
        copies.push_back(copy);
        memcpy(copy, array.host, array.bytes);
        add_region(machine.regions, next, array.bytes, Place::array, array.writable, i, array.item_bytes);
        if (array.written)
            poison(machine.regions.back(), array);
        next += array.bytes + gap;
    }
    machine.parameters.clear();
    std::vector<u64> pointers(size_t(launch->arguments) + 1);
    for (int i = 0; i < launch->arguments; ++i) {
        const Argument& argument = launch->argument[i];
        if (argument.scalar) {
            machine.parameters.push_back(const_cast<void*>(argument.scalar));
            continue;
        }
        pointers[size_t(i)] = argument.array < 0 ? 0 : u64(copies[size_t(argument.array)] + argument.offset);
        machine.parameters.push_back(&pointers[size_t(i)]);
    }
    Segments segments = {};
    segments.inside = Address(&simt_launch);
    dl_iterate_phdr(find_segments, &segments);
    machine.static_base = reinterpret_cast<u8*>(segments.tls);
    machine.static_bytes = segments.tls_bytes;
    if (segments.data_bytes)
        add_region(machine.regions, segments.data, segments.data_bytes, Place::device, true, 0, 4);

    run_grid();

    for (int i = 0; i < launch->arrays; ++i) {
        const Array& array = launch->array[i];
        if (array.writable && !machine.failed)
            memcpy(array.host, copies[size_t(i)], array.bytes);
        const Region& region = machine.regions[size_t(i)];
        if (array.written)
            for (u64 b = 0; b < array.bytes; ++b)
                array.written[b] = !region.cells[b >> region.shift].poison;
    }
    release_cells(machine.regions);
    machine.regions.clear();
    release(arena, arena_bytes);
    return machine.failed;
}

// ---- the kernel's side ---------------------------------------------------------------------------------------------------------

Triple simt_thread_index() { return current->index; }
Triple simt_block_index() { return machine.block_index; }
Triple simt_block_shape() { return machine.launch->block; }
Triple simt_grid_shape() { return machine.launch->grid; }
int simt_lane() { return int(current->lane); }
void* simt_dynamic_shared() { return machine.dynamic_memory; }
void simt_fail(const char* kind, const char* text) { fail(kind, __builtin_return_address(0), "%s", text); }
void simt_touch(const void* address, size_t bytes, int write)
{
    check(Address(address), bytes, write, false, __builtin_return_address(0));
}
void simt_barrier(const char* file, int line) { arrive_at_barrier("__syncthreads", 0, 0, file, line); }
int simt_barrier_reduce(int op, int predicate, const char* file, int line)
{
    arrive_at_barrier("__syncthreads_count/and/or", op, predicate, file, line);
    return current->barrier_result;
}

void simt_exchange(const char* kind, u32 mask, const void* mine, int bytes, void* all, const char* file, int line)
{
    const bool needs_all = strncmp(kind, "gather", 6) == 0;
    Exchange* group = meet(kind, mask, mine, bytes, needs_all, file, line);
    memcpy(all, group->data, size_t(32 * bytes));
    leave(group);
}

void simt_take(const char* kind, u32 mask, const void* mine, int bytes, int source, void* out, const char* file, int line)
{
    Exchange* group = meet(kind, mask, mine, bytes, true, file, line);
    if (source < 0 || source > 31 || !(group->arrived >> source & 1))
        fail("warp", nullptr, "%s with mask 0x%08x at %s:%d reads lane %d, which the mask leaves out", kind, mask,
             base_name(file), line, source);
    memcpy(out, group->data + source * bytes, size_t(bytes));
    leave(group);
}

void simt_sync_warp(u32 mask, const char* file, int line) { leave(meet("__syncwarp", mask, nullptr, 0, false, file, line)); }

// Lets other threads go first. One that sleeps this often waits for something that never comes.
void simt_sleep()
{
    if (++machine.sleeps > most_sleeps)
        fail("deadlock", __builtin_return_address(0), "a thread waits in vain for a thread of another block");
    current->state = State::asleep;
    to_main();
}

void simt_fence(int device)
{
    const u32 stamp = ++machine.warp[current->warp].stamp;
    machine.warp[current->warp].known[current->lane][current->lane] = stamp;
    machine.fenced = true;
    for (int scope = 0; scope <= device; ++scope) {
        current->fence_stamp[scope] = stamp;
        current->fence_epoch[scope] = machine.epoch;
    }
}

} // extern "C"

namespace {

// An atomic sees the releases that were made at its address, and makes one if its thread knows of a fence.
void handshake(Address address)
{
    Warp& warp = machine.warp[current->warp];
    Release release = {machine.block, current->warp, {0, 0}, {}, {}};
    bool fenced = false;
    for (int scope = 0; scope < 2; ++scope) {
        release.epoch[scope] = machine.fence_epoch_done[scope];
        release.thread[scope] = machine.fence_done[scope];
        fenced = fenced || release.thread[scope];
        for (u32 lanes = warp.lanes; lanes; lanes &= lanes - 1) {
            const u32 lane = u32(__builtin_ctz(lanes));
            const Fiber& other = machine.fiber[current->warp * 32 + lane];
            const u32 stamp = other.fence_stamp[scope];
            if (!stamp || (lane != current->lane && stamp >= known(warp, current->lane, lane)))
                continue;
            fenced = true;
            release.lane[scope][lane] = stamp;
            if (other.fence_epoch[scope] > release.epoch[scope])
                release.epoch[scope] = other.fence_epoch[scope];
        }
    }
    const auto found = machine.syncs.find(address);
    if (found != machine.syncs.end()) {
        acquire(warp.acquired, &found->second, u32(found->second.releases.size()));
    }
    if (fenced) {
        Sync& sync = machine.syncs[address];
        const std::vector<u32>& mine = sync.by_block[machine.block];
        if (!mine.empty() && sync.releases[mine.back()].says_as_much_as(release))
            return; // whoever looks again and again says nothing new
        sync.by_block[machine.block].push_back(u32(sync.releases.size()));
        sync.releases.push_back(std::move(release));
    }
}

template <class T, class Signed> T rmw(int op, void* where, T value, T compare, const void* code)
{
    const Address address = Address(where);
    if (address % sizeof(T))
        fail("misaligned", code, "an atomic on %zu bytes at an address that is no multiple of %zu", sizeof(T), sizeof(T));
    if (machine.shuffled && next_random() % 2)
        to_main(); // let others go first
    check(address, sizeof(T), true, true, code);
    handshake(address);
    T* memory = static_cast<T*>(where);
    const T old = *memory;
    switch (op) {
    case 0: *memory = old + value; break;
    case 1: *memory = value; break;
    case 2: *memory = old == compare ? value : old; break;
    case 3: *memory = Signed(value) < Signed(old) ? value : old; break;
    case 4: *memory = Signed(value) > Signed(old) ? value : old; break;
    case 5: *memory = old & value; break;
    case 6: *memory = old | value; break;
    case 7: *memory = old ^ value; break;
    case 8: *memory = old >= value ? 0 : old + 1; break;
    case 9: *memory = old == 0 || old > value ? value : old - 1; break;
    case 10: *memory = value < old ? value : old; break;
    case 11: *memory = value > old ? value : old; break;
    }
    if (*memory != old)
        machine.sleeps = 0;
    return old;
}

} // namespace

extern "C" {

u32 simt_rmw32(int op, void* address, u32 value, u32 compare)
{
    return rmw<u32, int>(op, address, value, compare, __builtin_return_address(0));
}
u64 simt_rmw64(int op, void* address, u64 value, u64 compare)
{
    return rmw<u64, long long>(op, address, value, compare, __builtin_return_address(0));
}

// ---- what -fsanitize calls -----------------------------------------------------------------------------------------------------

#define HOOKS(bytes)                                                                                                 \
    void __tsan_read##bytes(void* p) { check(Address(p), bytes, false, false, __builtin_return_address(0)); }        \
    void __tsan_write##bytes(void* p) { check(Address(p), bytes, true, false, __builtin_return_address(0)); }        \
    void __tsan_unaligned_read##bytes(void* p) { check(Address(p), bytes, false, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##bytes(void* p) { check(Address(p), bytes, true, false, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) { check(Address(p), bytes, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t bytes) { check(Address(p), bytes, true, false, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

struct SourceLocation {
    const char* file;
    u32 line, column;
};
struct TypeDescriptor {
    u16 kind, info;
    char name[1];
};
struct TypeMismatch {
    SourceLocation where;
    TypeDescriptor* type;
    u8 log_alignment, check;
};
struct OutOfBounds {
    SourceLocation where;
    TypeDescriptor *array, *index;
};

void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, Address address)
{
    if (!current)
        return;
    const void* code = __builtin_return_address(0);
    char what[300];
    snprintf(what, sizeof(what), "accesses %s at an address that is no multiple of %u", data->type->name,
             1u << data->log_alignment);
    if (Region* region = find(address, 1))
        fail_at("misaligned", region, address, code, what);
    fail("misaligned", code, "%s", what);
}
void __ubsan_handle_out_of_bounds(OutOfBounds* data, u64 index)
{
    if (current)
        fail("out of bounds", __builtin_return_address(0), "index %lld of an array of type %s", (long long)index,
             data->array->name);
}
#define UNDEFINED(name, text)                                                                                        \
    void __ubsan_handle_##name(void*, u64, u64)                                                                      \
    {                                                                                                                \
        if (current)                                                                                                 \
            fail("arithmetic", __builtin_return_address(0), text);                                                   \
    }
UNDEFINED(shift_out_of_bounds, "shifts by less than 0 or by the width of the type or more")
UNDEFINED(divrem_overflow, "divides an integer by zero")
UNDEFINED(add_overflow, "a signed integer sum overflows")
UNDEFINED(sub_overflow, "a signed integer difference overflows")
UNDEFINED(mul_overflow, "a signed integer product overflows")
UNDEFINED(negate_overflow, "a signed integer negation overflows")

} // extern "C"

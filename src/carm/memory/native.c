/* The loops over bytes that numpy has no single call for. native.py is the only caller; checksum.py, move.py and ram.py
 * say what is computed, and do the same with numpy where this has not been compiled.
 *
 * Records are copied and summed a few kilobytes at a time, so that the sum finds the bytes in the first cache. With
 * numpy they are all copied to staging rows, read again for their checksums, and copied again into their blocks.
 *
 * Nothing here is of Python: the caller passes addresses, and the interpreter lock is not held meanwhile.
 */
#include <stdint.h>
#include <string.h>

#define ABI 2       /* native.py refuses a library with another number */
#define PIECE 65536 /* words of a record that are summed with one set of constants */
#define MULTIPLIER 0x9E3779B97F4A7C15u
#define CHUNK 1024 /* words that are copied, then summed: a divisor of PIECE, and of the first cache */

/* Words of any alignment that may lie over anything. */
typedef uint32_t __attribute__((may_alias, aligned(1))) word;

/* The sum of c[i] * w[i]. The constants come in halves: c * w is low * w + (high * w << 32), and of high * w only the
 * lower 32 bits are left of that. So all products are of 32-bit numbers, which vector units have. */
static inline __attribute__((always_inline)) uint64_t products(const word *restrict w, const uint32_t *restrict c_low,
                                                               const uint32_t *restrict c_high, int64_t n)
{
    uint64_t low = 0;
    uint32_t high = 0;
    for (int64_t i = 0; i < n; i++) {
        low += (uint64_t)c_low[i] * w[i];
        high += c_high[i] * w[i];
    }
    return low + ((uint64_t)high << 32);
}

typedef uint64_t Sum(const word *, const uint32_t *, const uint32_t *, int64_t);

static uint64_t sum_anywhere(const word *w, const uint32_t *c_low, const uint32_t *c_high, int64_t n)
{
    return products(w, c_low, c_high, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t sum_avx2(const word *w, const uint32_t *c_low, const uint32_t *c_high,
                                                         int64_t n)
{
    return products(w, c_low, c_high, n);
}
#endif

static Sum *fastest(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return sum_avx2;
#endif
    return sum_anywhere;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t carm_abi(void)
{
    return ABI;
}

/* sums[i] = the checksum of data[starts[i] : starts[i] + sizes[i]]. Returns -1, or the first i that is not in data. */
int64_t carm_checksum(const uint8_t *data, int64_t length, const int64_t *starts, const int64_t *sizes, int64_t n,
                      const uint32_t *c_low, const uint32_t *c_high, uint64_t *sums)
{
    Sum *sum = fastest();
    for (int64_t i = 0; i < n; i++) {
        if (starts[i] < 0 || sizes[i] < 0 || starts[i] > length - sizes[i])
            return i;
        const word *from = (const word *)(data + starts[i]);
        uint64_t h = 0;
        for (int64_t left = sizes[i] / 4; left > 0; left -= PIECE, from += PIECE)
            h = h * MULTIPLIER + sum(from, c_low, c_high, least(left, PIECE));
        sums[i] = h;
    }
    return -1;
}

/* Copy the record data[starts[i] : starts[i] + sizes[i]] into the next of the `count` blocks, as many as it takes, and
 * sums[i] = its checksum, unless `sums` is NULL. Where whole[i] is 0 nothing is copied, and its blocks are passed over;
 * if `whole` is NULL all are copied. Nobody may write to the records meanwhile: they are read twice, since what has just
 * been written to `to` could be read again only later. Returns -1, or the first i that is not in data, or whose blocks
 * are not in the arena; then the records before it have been copied. */
int64_t carm_move(uint8_t *arena, int64_t rows, int64_t block, const int64_t *blocks, int64_t count,
                  const uint8_t *data, int64_t length, const int64_t *starts, const int64_t *sizes,
                  const uint8_t *whole, int64_t n, const uint32_t *c_low, const uint32_t *c_high, uint64_t *sums)
{
    Sum *sum = fastest();
    int64_t at = 0; /* in blocks */
    for (int64_t i = 0; i < n; i++) {
        if (sizes[i] < 0 || (sizes[i] + block - 1) / block > count - at)
            return i;
        if (whole && !whole[i]) {
            at += (sizes[i] + block - 1) / block;
            continue;
        }
        if (starts[i] < 0 || starts[i] > length - sizes[i])
            return i;
        if (i + 1 < n) /* the next record's first bytes; to ask for them never faults */
            for (int64_t ahead = 0; ahead < least(sizes[i + 1], 4 * CHUNK); ahead += 64)
                __builtin_prefetch(data + starts[i + 1] + ahead);
        const uint8_t *from = data + starts[i];
        uint64_t h = 0;
        int64_t place = 0; /* of the next word in its piece */
        for (int64_t left = sizes[i]; left > 0; at++) {
            if (blocks[at] < 0 || blocks[at] >= rows)
                return i;
            uint8_t *to = arena + blocks[at] * block;
            for (int64_t words = least(left, block) / 4; words > 0;) {
                int64_t here = least(words, CHUNK - place % CHUNK);
                memcpy(to, from, 4 * here);
                if (sums) {
                    h = place ? h : h * MULTIPLIER;
                    h += sum((const word *)from, c_low + place, c_high + place, here);
                }
                to += 4 * here, from += 4 * here, left -= 4 * here, words -= here;
                place = (place + here) % PIECE;
            }
        }
        if (sums)
            sums[i] = h;
    }
    return -1;
}

/* Copy records out of the arena, one behind the other: record i is counts[i] blocks, of which the first is first[i], and
 * each says in `successors` which is the next. Another process may be changing that meanwhile; what is copied is then
 * nonsense, which the caller will notice, but nothing outside the arena is read. Returns -1, or the first i that would
 * not fit in `room` blocks. */
int64_t carm_gather(const uint8_t *arena, int64_t rows, int64_t block, const volatile int32_t *successors,
                    const int64_t *first, const int64_t *counts, int64_t n, uint8_t *out, int64_t room)
{
    for (int64_t i = 0; i < n; i++) {
        if (counts[i] < 0 || counts[i] > room)
            return i;
        room -= counts[i];
        int64_t at = first[i];
        for (int64_t left = counts[i]; left > 0; left--, out += block) {
            at = at < 0 ? 0 : least(at, rows - 1);
            int64_t next = successors[at];
            if (left > 1 && next >= 0 && next < rows)
                __builtin_prefetch(arena + next * block);
            memcpy(out, arena + at * block, block);
            at = next;
        }
    }
    return -1;
}

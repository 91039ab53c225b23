/* What every unit test starts from: cmocka with the headers it wants first, and a test as a claim.
 */
#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(claim) static void claim(void **state __attribute__((unused)))

/* Numbers that look random and are the same in every run: xorshift64*, `seed` not 0. */
static inline uint64_t unit_random(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * 0x2545f4914f6cdd1dull;
}

#endif

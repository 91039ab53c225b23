/* What shared/cuda.h says without a driver. */
#include "tests/unit/unit.h"

#include <string.h>

#include "shared/cuda.h"

static const uint8_t uuid[16] = { 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                                  0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef };
static const char text[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

TEST(a_uuid_is_written_as_the_driver_tools_write_it)
{
    char got[CUDA_UUID_TEXT];

    cuda_uuid_text(uuid, got);
    assert_string_equal(got, text);
}

TEST(a_uuid_is_read_in_either_case)
{
    uint8_t got[16];

    assert_true(cuda_uuid_parse(text, got));
    assert_memory_equal(got, uuid, sizeof(got));
    assert_true(cuda_uuid_parse("GPU-01234567-89AB-CDEF-0123-456789ABCDEF", got));
    assert_memory_equal(got, uuid, sizeof(got));
}

TEST(every_byte_of_a_uuid_comes_back)
{
    uint8_t in[16], out[16];
    char got[CUDA_UUID_TEXT];

    for (unsigned i = 0; i < 256; i++) {
        for (unsigned k = 0; k < sizeof(in); k++)
            in[k] = (uint8_t)(i + 17 * k);
        cuda_uuid_text(in, got);
        assert_true(cuda_uuid_parse(got, out));
        assert_memory_equal(in, out, sizeof(in));
    }
}

TEST(what_is_no_uuid_is_refused)
{
    uint8_t got[16];
    char changed[CUDA_UUID_TEXT + 1];

    assert_false(cuda_uuid_parse("", got));
    assert_false(cuda_uuid_parse("all", got));
    assert_false(cuda_uuid_parse(text + 4, got));
    assert_false(cuda_uuid_parse("MIG-01234567-89ab-cdef-0123-456789abcdef", got));
    for (unsigned i = 0; i < sizeof(text); i++) {
        memcpy(changed, text, sizeof(text));
        changed[sizeof(text)] = '\0';
        changed[i] = 'g'; /* and so behind its end */
        assert_false(cuda_uuid_parse(changed, got));
        changed[i] = '\0';
        assert_int_equal(cuda_uuid_parse(changed, got), i == sizeof(text) - 1);
    }
}

TEST(errors_that_leave_a_context_broken_are_told_from_those_that_do_not)
{
    static const CUresult broken[] = { 214, 220, 226, 700, 702, 709, 710, 714,
                                       715, 716, 717, 718, 719, 721, 810, 911 };

    for (CUresult e = -1; e < 1100; e++) {
        bool is_broken = false;

        for (unsigned i = 0; i < ARRAY_SIZE(broken); i++)
            is_broken = is_broken || broken[i] == e;
        assert_int_equal(cuda_error_is_sticky(e), is_broken);
    }
}

static CUresult name_of_none(CUresult error, const char **ret)
{
    (void)error;
    *ret = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

TEST(an_error_that_the_driver_does_not_name_has_a_text_all_the_same)
{
    const struct cuda cuda = { .cuGetErrorName = name_of_none };

    assert_non_null(cuda_error_name(&cuda, 12345));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uuid_is_written_as_the_driver_tools_write_it),
        cmocka_unit_test(a_uuid_is_read_in_either_case),
        cmocka_unit_test(every_byte_of_a_uuid_comes_back),
        cmocka_unit_test(what_is_no_uuid_is_refused),
        cmocka_unit_test(errors_that_leave_a_context_broken_are_told_from_those_that_do_not),
        cmocka_unit_test(an_error_that_the_driver_does_not_name_has_a_text_all_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

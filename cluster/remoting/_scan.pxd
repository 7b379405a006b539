# cython: language_level=3
"""What compiled modules share that read and write frames: byte order, JSON strings and numbers. Inline functions only,
so there is no module of this name to load, and no form that could be of another build."""

from libc.string cimport memcmp, memcpy

ctypedef const unsigned char* Bytes

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* How many bytes from `at` on, of `size`, are plain in a JSON string, counted in eights: no quote, no backslash, no
       control character, all ASCII. Zero only says: look at the next byte yourself. The lowest mark of each mask is exact
       (a borrow can only raise false ones above a true one), so the lowest of all is the first byte that is not plain. */
    static inline size_t tandem_plain_bytes(const unsigned char* at, size_t size) {
        size_t plain = 0;
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101ULL, high = 0x8080808080808080ULL;
        while (size - plain >= 8) {
            uint64_t word, quote, slash, marks;
            memcpy(&word, at + plain, 8);
            quote = word ^ (ones * 0x22);
            slash = word ^ (ones * 0x5c);
            marks = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((word - ones * 0x20) & ~word) | word) & high;
            if (marks)
                return plain + (size_t)(__builtin_ctzll(marks) >> 3);
            plain += 8;
        }
    #endif
        return plain;
    }
    """
    size_t tandem_plain_bytes(Bytes at, size_t size) noexcept nogil

cdef enum:
    ESCAPED = 1                 # marks of a Text
    NOT_ASCII = 2

cdef struct Text:
    # a JSON string's content as it lies in the frame
    Bytes at
    Py_ssize_t size
    int marks


# --- reading ---

cdef inline unsigned int get16(Bytes at) noexcept nogil:
    return <unsigned int>at[0] << 8 | at[1]


cdef inline unsigned int get32(Bytes at) noexcept nogil:
    return <unsigned int>at[0] << 24 | <unsigned int>at[1] << 16 | <unsigned int>at[2] << 8 | at[3]


cdef inline unsigned long long get64(Bytes at) noexcept nogil:
    return <unsigned long long>get32(at) << 32 | get32(at + 4)


cdef inline Bytes after_blanks(Bytes at, Bytes end) noexcept nogil:
    while at < end and (at[0] == 32 or 9 <= at[0] <= 13 and at[0] != 11 and at[0] != 12):
        at += 1
    return at


cdef inline Bytes read_text(Bytes at, Bytes end, Text* text) noexcept nogil:
    """Past a JSON string that starts at `at`; NULL when it is none. Escapes are marked, not undone."""
    cdef unsigned char byte
    if at >= end or at[0] != 34:
        return NULL
    at += 1
    text.at = at
    text.marks = 0
    while at < end:
        at += tandem_plain_bytes(at, <size_t>(end - at))
        if at == end:
            return NULL
        byte = at[0]
        if byte == 34:
            text.size = at - text.at
            return at + 1
        if byte == 92:
            text.marks |= ESCAPED
            at += 1
        elif byte < 32:
            return NULL
        elif byte >= 128:
            text.marks |= NOT_ASCII
        at += 1
    return NULL


cdef inline bint read_number(
    Bytes at, Py_ssize_t size, long long low, long long high, long long* found
) noexcept nogil:
    """A decimal number in its shortest form, alone in its bytes, within [low, high]."""
    cdef bint negative = False
    cdef unsigned long long value = 0
    cdef unsigned int digit
    cdef Py_ssize_t i
    if size > 0 and at[0] == 45:
        negative = True
        at += 1
        size -= 1
    if size < 1 or size > 18 or (at[0] == 48 and (size > 1 or negative)):
        return False
    for i in range(size):
        digit = <unsigned int>at[i] - 48
        if digit > 9:
            return False
        value = value * 10 + digit
    found[0] = -<long long>value if negative else <long long>value
    return low <= found[0] <= high


cdef inline Bytes read_int(Bytes at, Bytes end, int* found) noexcept nogil:
    """Past a JSON number of 32 bits; NULL when it is none."""
    cdef Bytes start = at
    cdef long long value
    while at < end and (48 <= at[0] <= 57 or at[0] == 45):
        at += 1
    if not read_number(start, at - start, -2147483648, 2147483647, &value):
        return NULL
    found[0] = <int>value
    return at


cdef inline Bytes into_object(Bytes at, Bytes end) noexcept nogil:
    """Past the brace of a JSON object, at its first name or its end; NULL when it is none."""
    return after_blanks(at + 1, end) if at < end and at[0] == 123 else NULL


cdef inline Bytes read_name(Bytes at, Bytes end, Text* name) noexcept nogil:
    """Past a member's plain name and its colon, at its value; NULL at anything else."""
    at = read_text(at, end, name)
    if at == NULL or name.marks:
        return NULL
    at = after_blanks(at, end)
    return after_blanks(at + 1, end) if at < end and at[0] == 58 else NULL


cdef inline Bytes after_value(Bytes at, Bytes end, bint* more) noexcept nogil:
    """Past what follows a member's value: a comma and blanks, or the object's brace; NULL at anything else, and of NULL."""
    if at == NULL:
        return NULL
    at = after_blanks(at, end)
    if at >= end:
        return NULL
    more[0] = at[0] == 44
    if more[0]:
        return after_blanks(at + 1, end)
    return at + 1 if at[0] == 125 else NULL


cdef inline bint is_word(const Text* text, const char* word, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, word, <size_t>size) == 0


# --- writing ---

cdef inline unsigned char* put_bytes(unsigned char* at, Bytes found, Py_ssize_t size) noexcept nogil:
    memcpy(at, found, <size_t>size)
    return at + size


cdef inline unsigned char* put32(unsigned char* at, unsigned int value) noexcept nogil:
    at[0] = <unsigned char>(value >> 24)
    at[1] = <unsigned char>(value >> 16)
    at[2] = <unsigned char>(value >> 8)
    at[3] = <unsigned char>value
    return at + 4


cdef inline unsigned char* put_decimal(unsigned char* at, long long value) noexcept nogil:
    """Past the number as text: 20 bytes at most."""
    cdef unsigned char digits[24]
    cdef unsigned long long left
    cdef int count = 0
    if value < 0:
        at[0] = 45
        at += 1
        left = 0 - <unsigned long long>value
    else:
        left = <unsigned long long>value
    while True:
        digits[count] = <unsigned char>(48 + left % 10)
        count += 1
        left //= 10
        if left == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at

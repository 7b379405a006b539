# cython: language_level=3
"""The header of a request as the two short paths of a broker read it: a send's, a pull's. Inline functions only."""

from tandemmq.cluster.remoting._scan cimport (
    Bytes, Text, after_blanks, after_value, into_object, is_word, read_int, read_name, read_text,
)

cdef enum:
    FIELDS_MAX = 14
    EXT_FIELDS_TAKEN = 32       # known or not: a header of more is somebody's attempt
    EXT_NAME_MAX = 64

    NO_MATTER = -1              # an ext field that changes nothing
    NOT_OURS = -2               # one that makes the whole request another path's

    HAS_CODE = 1                # members of a header
    HAS_EXT = 2
    HAS_FLAG = 4
    HAS_OPAQUE = 8
    HAS_VERSION = 16
    HAS_LANGUAGE = 32
    HAS_REMARK = 64
    HAS_SERIALIZATION = 128

cdef struct Request:
    # one frame's header, its texts still in the frame
    int code
    int flag
    int opaque
    int version
    int members                 # HAS_*
    unsigned int seen           # a bit per field
    bint binary
    Text language
    Text fields[FIELDS_MAX]

# which field of a request of this code an ext name means
ctypedef int (*FieldOf)(int code, const Text* name) noexcept nogil


cdef inline bint keep_field(Request* request, int field, const Text* value) noexcept nogil:
    """Whether the request stays ours with this ext field: each that matters once."""
    if field >= 0:
        if request.seen & (1u << field):
            return False
        request.seen |= 1u << field
        request.fields[field] = value[0]
    return field != NOT_OURS


cdef inline Bytes read_ext(Bytes at, Bytes end, Request* request, FieldOf field_of, int any_text) noexcept nogil:
    """Past the extFields object; NULL at anything that a stock client does not write.

    Values are plain ASCII, the one of the field `any_text` whatever it is.
    """
    cdef Text name, value
    cdef bint more = True
    cdef int field, count = 0
    at = into_object(at, end)
    while at != NULL and more:
        at = read_name(at, end, &name)
        if at == NULL or name.size > EXT_NAME_MAX:
            return NULL
        at = read_text(at, end, &value)
        count += 1
        if at == NULL or count > EXT_FIELDS_TAKEN:
            return NULL
        field = field_of(request.code, &name)
        if not keep_field(request, field, &value) or (value.marks and field != any_text):
            return NULL
        at = after_value(at, end, &more)
    return at


cdef inline bint read_json(Bytes at, Bytes end, Request* request, FieldOf field_of, int any_text) noexcept nogil:
    """Whether [at, end) is a JSON header as clients write it: known members, each once, the code before the ext fields."""
    cdef Text name, value
    cdef bint more = True
    cdef int member
    request.members = 0
    request.seen = 0
    request.binary = False
    request.flag = request.opaque = request.version = 0
    request.language.size = 0
    at = into_object(at, end)
    while at != NULL and more:
        at = read_name(at, end, &name)
        if at == NULL:
            return False
        if is_word(&name, "code", 4):
            member = HAS_CODE
            at = read_int(at, end, &request.code)
        elif is_word(&name, "extFields", 9):
            member = HAS_EXT
            if request.members & (HAS_CODE | HAS_EXT) != HAS_CODE:
                return False
            at = read_ext(at, end, request, field_of, any_text)
        elif is_word(&name, "flag", 4):
            member = HAS_FLAG
            at = read_int(at, end, &request.flag)
        elif is_word(&name, "opaque", 6):
            member = HAS_OPAQUE
            at = read_int(at, end, &request.opaque)
        elif is_word(&name, "version", 7):
            member = HAS_VERSION
            at = read_int(at, end, &request.version)
        else:
            at = read_text(at, end, &value)
            if at == NULL or value.marks:
                return False
            if is_word(&name, "language", 8):
                member = HAS_LANGUAGE
                request.language = value
            elif is_word(&name, "serializeTypeCurrentRPC", 23):
                member = HAS_SERIALIZATION
            elif is_word(&name, "remark", 6):
                member = HAS_REMARK
            else:
                return False
        if request.members & member:
            return False
        request.members |= member
        at = after_value(at, end, &more)
    return at != NULL and after_blanks(at, end) == end

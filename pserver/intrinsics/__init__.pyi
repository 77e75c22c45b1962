from .row_prefetch import FLOATS_A_LINE as FLOATS_A_LINE
from .row_prefetch import prefetch as prefetch
from .row_prefetch import prefetch_at as prefetch_at
from .row_prefetch import prefetch_row as prefetch_row
from .row_view import record_of as record_of
from .row_view import row_of as row_of

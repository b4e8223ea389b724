"""Pinned memory keeps what every allocator promises."""

# These run once more here, over the allocators of this directory.
from test_contract import (  # noqa: F401
    test_absurd_sizes_are_out_of_memory,
    test_alignment,
    test_alignment_below_a_pointers_is_served,
    test_allocation_and_release_in_destructors_and_the_collector,
    test_an_array_keeps_its_block_and_its_last_view_ends_it,
    test_block_has_the_size_asked_for_and_can_be_written,
    test_blocks_do_not_overlap_and_keep_their_contents,
    test_close_refuses_allocations_and_spares_live_blocks,
    test_every_kind_of_event_can_fence,
    test_fences_may_allocate_and_release_when_asked,
    test_flush_leaves_nothing_pending,
    test_flush_waits_for_a_fence_that_another_thread_is_just_asking,
    test_more_than_the_machine_has_is_out_of_memory,
    test_release_in_another_thread,
    test_release_is_idempotent_and_refused_while_viewed,
    test_senseless_alignment_is_refused,
    test_sizes_as_people_write_them,
    test_stats_count_what_happened,
    test_trim_gives_every_idle_byte_back,
    test_zeroed_is_zero_on_every_path,
)

"""Planning on a GPU: the primitives of packing, written as launches of plain kernels on arrays.

`dasp.formats.sell.pack` calls them in this order. Each reads at most one array of numbers back to the host;
all else stays on the device.

===================== ============================================ =========================================
module                kernels of kernels/pack/                     the host reads
===================== ============================================ =========================================
`survey`              survey.cu, values.cu                         facts of the integers and of the values
`slice_statistics`    windows.cu or keys.cu, cut.cu, sectors.cu    slices, steps and sectors of each window
`layout`              the same if no window was tried; segments.cu slices and steps, if no window was tried
`store`               store.cu, columns.cu                         blocks of deltas
===================== ============================================ =========================================

Sorts, scans and sorted columns are those of `dasp.formats.csr`. `values`, `orders` and `segments` are what
the steps share; `refill` and `unpack` start from a plan. `kernels` declares what each kernel takes, `kinds`
the types that it is compiled for, and `launcher` launches it.
"""

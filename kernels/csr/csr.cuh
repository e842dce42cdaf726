// The integers of a matrix in compressed sparse rows. DASP_START, DASP_COLUMN: types of its indptr and indices.
#pragma once

#include "csr/scan.cuh"

#ifndef DASP_START
#error "define DASP_START and DASP_COLUMN: the integer types of indptr and of indices"
#endif

using Start = DASP_START;
using Column = DASP_COLUMN;

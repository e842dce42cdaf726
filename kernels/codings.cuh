// The numbers of a Coding in pattern.py: how the values of slices are stored, as DASP_CODING says.
#pragma once

#ifndef DASP_CODING
#error "define DASP_CODING: how values are stored, the number of a Coding in pattern.py"
#endif

#define CODING_PLAIN 0
#define CODING_SINGLE 1
#define CODING_BYTE 2
#define CODING_DICTIONARY 3
#define CODING_EQUAL 4
#define CODING_HALF 5
#define CODING_REAL 6
#define CODING_REAL_SINGLE 7

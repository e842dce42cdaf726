#include "halves.h"

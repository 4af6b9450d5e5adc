#pragma once  // functions of c10::complex, of which nothing else takes one

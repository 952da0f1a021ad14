// A program that calls C is linked dynamically.

package main

import "C"

# The functions that C++ runtimes compare names of types with.

	.section .text.strcmp, "ax"
	.weak strcmp
	.type strcmp, @function
strcmp:
	movzbl (%rdi), %eax
	movzbl (%rsi), %ecx
	cmp %ecx, %eax
	jne 1f
	inc %rdi
	inc %rsi
	test %eax, %eax
	jne strcmp
1:	sub %ecx, %eax
	ret
	.size strcmp, . - strcmp

	.section .text.strncmp, "ax"
	.weak strncmp
	.type strncmp, @function
strncmp:
	xor %eax, %eax
	xor %ecx, %ecx
1:	sub $1, %rdx
	jb 2f
	movzbl (%rdi), %eax
	movzbl (%rsi), %ecx
	cmp %ecx, %eax
	jne 2f
	inc %rdi
	inc %rsi
	test %eax, %eax
	jne 1b
2:	sub %ecx, %eax
	ret
	.size strncmp, . - strncmp

	.section .note.GNU-stack, "", @progbits

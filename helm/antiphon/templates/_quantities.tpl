{{/*
A quantity of Kubernetes as a number: bytes, cores or pieces. Up to 2 ** 53 and a thousandth it is
exact.
*/}}
{{- define "antiphon.quantity" -}}
{{- $units := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $text := kindIs "float64" . | ternary (printf "%v" (int64 .)) (toString .) -}}
{{- if and (kindIs "float64" .) (ne (float64 (int64 .)) (float64 .)) -}}
{{- $text = toString . -}}
{{- end -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- printf "%.3f" (mulf (float64 $number) (get $units (trimPrefix $number $text))) -}}
{{- end -}}

{{/* `true` or `false`: whether the first quantity is more than the second. Arguments: a list of two. */}}
{{- define "antiphon.exceeds" -}}
{{- gt (include "antiphon.quantity" (index . 0) | float64) (include "antiphon.quantity" (index . 1) | float64) -}}
{{- end -}}

{{/* `true` or `false`: whether a whole number is a power of two. */}}
{{- define "antiphon.isPowerOfTwo" -}}
{{- $given := int64 . -}}
{{- $power := int64 1 -}}
{{- range until 62 -}}
{{- if lt $power $given -}}{{- $power = mul $power 2 -}}{{- end -}}
{{- end -}}
{{- eq $power $given -}}
{{- end -}}

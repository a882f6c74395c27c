{{- /* Values that the chart does not have, refused with the nearest name: a schema could say only that they are additional. */ -}}
{{- define "warmpath.unknown" -}}
{{- $schema := .Files.Get "known.json" | fromJson }}
{{- $names := include "warmpath.known" (list "" $schema) | trim | splitList "\n" }}
{{- include "warmpath.compare" (list "" .Values $schema $names) }}
{{- end }}

{{- /* The paths of all values, one a line. */ -}}
{{- define "warmpath.known" -}}
{{- $at := index . 0 }}
{{- range $key, $of := (index . 1).properties }}
{{ $at }}{{ $key }}
{{- if hasKey $of "properties" }}{{ include "warmpath.known" (list (printf "%s%s." $at $key) $of) }}{{ end }}
{{- end }}
{{- end }}

{{- define "warmpath.compare" -}}
{{- $at := index . 0 }}{{ $known := (index . 2).properties }}{{ $names := index . 3 }}
{{- range $key, $value := index . 1 }}
{{- if not (hasKey $known $key) }}
{{- $nearest := "" }}{{ $best := 400 }}
{{- range $names }}
{{- $alike := int (include "warmpath.alike" (list $key (splitList "." . | last))) }}
{{- /* Of equals, the one beside it. */}}
{{- if eq . (printf "%s%s" $at (splitList "." . | last)) }}{{ $alike = add1 $alike | int }}{{ end }}
{{- if gt $alike $best }}{{ $nearest = . }}{{ $best = $alike }}{{ end }}
{{- end }}
{{- fail (printf "%s%s: is no value of this chart; %s" $at $key (ternary (printf "the nearest is %s" $nearest) (printf "there are %s" (keys $known | sortAlpha | join ", ")) (ne $nearest ""))) }}
{{- else if and (hasKey (get $known $key) "properties") (kindIs "map" $value) }}
{{- include "warmpath.compare" (list (printf "%s%s." $at $key) $value (get $known $key) $names) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* How alike two names are, up to about 1000, by the pairs of letters that they share. */ -}}
{{- define "warmpath.alike" -}}
{{- $one := index . 0 | lower }}{{ $other := index . 1 | lower }}{{ $shared := 0 }}
{{- range $at := until (max 0 (sub (len $one) 1) | int) }}
{{- if contains (substr $at (int (add $at 2)) $one) $other }}{{ $shared = add1 $shared }}{{ end }}
{{- end }}
{{- div (mul 2000 $shared) (add (len $one) (len $other) 1) -}}
{{- end }}
